"""The limit of this machine: dense matrix products alone, which take turns with the models."""

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
"""Rows and columns of the product that a model without dense layers is held against."""


def products(
    config: "ModelConfig | None", batch_size: int, device: "torch.device"
) -> list[tuple[int, int, int]]:
    """The dense products of an encoder layer for a batch, without attention: (m, d, k) is `m d`
    times `d k`. Every layer has these, and little else costs as much.

    A network of convolutions has one large square product instead.
    """
    if not isinstance(config, ViTConfig):
        side = SQUARE[device.type]
        return [(side, side, side)]
    m, d = batch_size * config.num_tokens, config.width
    return [(m, d, 3 * d), (m, d, d), (m, d, config.mlp_hidden_width), (m, config.mlp_dim, d)]


@dataclass(frozen=True)
class Limit:
    """Matrix products alone, as the fastest library of this machine computes them."""

    call: Call
    flops: int
    """Operations of one call."""

    def share(self, flops: float, times: Times, own: Times) -> float:
        """Of the limit, what a call of `flops` operations in `times` reaches; `own` is the limit's.

        The middle of the rounds' values, so that both sides met the same machine.
        """
        pairs = zip(times.values, own.values, strict=True)
        return median(flops / t / (self.flops / o) for t, o in pairs)


def limit(
    shapes: Sequence[tuple[int, int, int]],
    dtype: "torch.dtype",
    device: "torch.device",
    *,
    packed: bool = False,
) -> Limit:
    """The products of these shapes, one after the other; `packed` is for forward passes."""
    import torch

    from vit.models import matmul

    inputs = [torch.randn(m, d, device=device).to(dtype) for m, d, _ in shapes]
    weights = [torch.randn(k, d, device=device).to(dtype) for _, d, k in shapes]
    # oneDNN or MKL, whichever is the faster one in float32; PyTorch takes oneDNN in bfloat16.
    own = device.type == "cpu" and matmul.works(dtype)
    if own and packed:
        product, weights = matmul.packed_product, [matmul.packed_copy(w) for w in weights]
    elif own and dtype == torch.float32 and matmul.current_float32_route() == "onednn":
        product = matmul.packed_product
    else:
        product, weights = torch.mm, [weight.t() for weight in weights]

    def call() -> object:
        with torch.inference_mode():
            return [product(x, weight) for x, weight in zip(inputs, weights, strict=True)]

    return Limit(call, sum(2 * m * d * k for m, d, k in shapes))
