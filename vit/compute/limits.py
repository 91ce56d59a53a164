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
    """Plain matrix products by the fastest library of this machine."""

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
    *,
    packed: bool = False,
) -> Limit:
    """Products of these shapes in sequence; `packed` applies to inference."""
    import torch

    from vit.kernels import dense, packing
    from vit.kernels.routes import PLAIN

    inputs = [torch.randn(m, d, device=device).to(dtype) for m, d, _ in shapes]
    weights = [torch.randn(k, d, device=device).to(dtype) for _, d, k in shapes]
    # Each product by the route of this machine, as in a model.
    multiply = []
    for i, (_, d, k) in enumerate(shapes):
        mode = "packed" if packed else "inference"
        if device.type == "cpu" and dense.route_of_layer(d, k, dtype, mode) != PLAIN:
            multiply.append(dense.packed_product)
            weights[i] = packing.packed_copy(weights[i]) if packed else weights[i]
        else:
            multiply.append(torch.mm)
            weights[i] = weights[i].t()

    def call() -> object:
        with torch.inference_mode():
            return [f(x, weight) for f, x, weight in zip(multiply, inputs, weights, strict=True)]

    return Limit(call, sum(2 * m * d * k for m, d, k in shapes))
