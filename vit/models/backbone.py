"""What the architectures share as backbones: input check, layer choice, recomputation."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vit.errors import UserError


def check_channels(images: Tensor, in_channels: int) -> None:
    """UserError unless images are `b c h w` with the channels the model was built for."""
    if images.ndim != 4 or images.shape[1] != in_channels:
        raise UserError(
            f"images of shape {tuple(images.shape)} do not fit: "
            f"this model takes b c h w with c={in_channels}"
        )


def layer_indices(layers: int | Sequence[int], depth: int) -> list[int]:
    """Indices from 0: the last `layers` of them, or those asked for (negative: from the end)."""
    last = isinstance(layers, int)
    asked = list(range(depth - layers, depth)) if last else list(layers)
    if not asked or min(asked) < (0 if last else -depth) or max(asked) >= depth:
        raise UserError(f"layers={layers!r} is outside the {depth} layers of this model")
    return [i % depth for i in asked]


def run(layer: Callable[[Tensor], Tensor], x: Tensor, recompute: bool) -> Tensor:
    """`layer(x)`; with `recompute` only x is kept, and the backward pass runs the layer again."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(layer, x, use_reentrant=False)  # pyright: ignore[reportReturnType]
    return layer(x)
