"""Low-rank updates of weights (LoRA, arXiv:2106.09685, section 4.1): W + B A for a frozen W.

A joint matrix of queries, keys and values has factors for each of the three. The scale is 1 (alpha
is the rank, in the paper's terms).
Shapes: g blocks of rows (3 or 1), r rank, d inputs, k outputs of a block.
"""

import torch
from torch import Tensor

A, B = "lora_a", "lora_b"
"""Last parts of the names of the factors: A `g r d` and B `g k r`, beside the layer's weight."""


def is_factor(name: str) -> bool:
    """True for the name of a factor."""
    return name.endswith((f".{A}", f".{B}"))


def merged(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """W + B A, in the dtype of `weight` (g * k, d), computed in float32 at least."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    update = (b.to(dtype) @ a.to(dtype)).flatten(0, 1)
    return (weight.to(dtype) + update).to(weight.dtype)
