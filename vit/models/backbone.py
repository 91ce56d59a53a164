"""Helpers shared by all architectures: input check, layer selection, recomputation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vit.errors import UserError


def check_channels(images: Tensor, in_channels: int) -> None:
    """Raises UserError unless images are `b c h w` with c = `in_channels`."""
    if images.ndim != 4 or images.shape[1] != in_channels:
        raise UserError(
            f"images of shape {tuple(images.shape)} do not fit: "
            f"this model takes b c h w with c={in_channels}"
        )


def layer_indices(layers: int | Sequence[int], depth: int) -> list[int]:
    """Non-negative indices of the last `layers` layers, or of a list (negative: from the end)."""
    last = isinstance(layers, int)
    indices = list(range(depth - layers, depth)) if last else list(layers)
    if not indices or min(indices) < (0 if last else -depth) or max(indices) >= depth:
        raise UserError(f"layers={layers!r} is outside the {depth} layers of this model")
    return [i % depth for i in indices]


def run(layer: Callable[..., Tensor], x: Tensor, recompute: bool, *further: Any) -> Tensor:
    """`layer(x, *further)`; with `recompute`, the backward pass recomputes it and only the
    arguments are saved."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(layer, x, *further, use_reentrant=False)  # pyright: ignore
    return layer(x, *further)
