"""The peak of this machine: plain matrix products, measured alternately with the models."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from vit.compute.timing import Call, Times
from vit.models.config import ViTConfig

if TYPE_CHECKING:
    import torch

    from vit.models.zoo import ModelConfig

SQUARE = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the reference product for models without dense layers."""


def products(
    config: "ModelConfig | None", batch_size: int, device: "torch.device"
) -> list[tuple[int, int, int]]:
    """The dense products of an encoder layer for a batch, without attention: (m, d, k) is `m d`
    times `d k`. They dominate the cost of a layer.

    Convolutional networks have one large square product instead.
    """
    if not isinstance(config, ViTConfig):
        side = SQUARE[device.type]
        return [(side, side, side)]
    m, d = batch_size * config.num_tokens, config.width
    return [(m, d, 3 * d), (m, d, d), (m, d, config.mlp_hidden_width), (m, config.mlp_dim, d)]


@dataclass(frozen=True)
class Limit:
    """Plain matrix products."""

    call: Call
    flops: int
    """Operations of one call."""

    def share(self, flops: float, times: Times, limit_times: Times) -> float:
        """Fraction of the peak reached by a call of `flops` operations in `times`.

        `limit_times` are those of the peak. Median of the ratios per round, in which both ran under
        the same conditions.
        """
        pairs = zip(times.values, limit_times.values, strict=True)
        return median(flops / t / (self.flops / o) for t, o in pairs)


def limit(
    shapes: Sequence[tuple[int, int, int]],
    dtype: "torch.dtype",
    device: "torch.device",
) -> Limit:
    """Products of these shapes in sequence."""
    import torch

    inputs = [torch.randn(m, d, device=device).to(dtype) for m, d, _ in shapes]
    weights = [torch.randn(k, d, device=device).to(dtype) for _, d, k in shapes]

    def call() -> object:
        with torch.inference_mode():
            return [torch.mm(x, weight.t()) for x, weight in zip(inputs, weights, strict=True)]

    return Limit(call, sum(2 * m * d * k for m, d, k in shapes))
