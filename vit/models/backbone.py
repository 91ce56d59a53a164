"""Shared by all architectures: names of timm, input check, layer selection, recomputation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vit.errors import UserError


class TimmNames:
    """What timm's models call by other names."""

    head_layers: Any
    layer_channels: list[int]
    layer_strides: list[int]
    activation_checkpointing: bool

    def get_classifier(self) -> Any:
        """The output layer; two of them if distilled; Identity without any."""
        layers = tuple(self.head_layers)
        return layers if len(layers) > 1 else layers[0] if layers else nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes layers in the backward pass instead of keeping their activations."""
        self.activation_checkpointing = enable

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels and stride of each of `intermediate_layers`."""
        pairs = zip(self.layer_channels, self.layer_strides, strict=True)
        return [{"num_chs": channels, "reduction": stride} for channels, stride in pairs]

    def no_weight_decay(self) -> set[str]:
        """Parameters that are neither kernels nor covered by the rule of one dimension."""
        names = dict(self.named_parameters())  # pyright: ignore[reportAttributeAccessIssue]
        return {"pos_embed", "cls_token", "dist_token", "reg_token"} & names.keys()


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
