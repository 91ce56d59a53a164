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
    patch_size: int
    activation_checkpointing: bool
    num_prefix_tokens = 0
    _outputs: Callable[..., tuple[dict[int, Tensor], Tensor, tuple[int, int] | None]]
    """From images, indices of `feature_info` and the last one: what these layers give, what the
    last one gives, and the grid of tokens; None for maps."""
    _normed: Callable[[Tensor, int], Tensor]
    """What a layer gives after the final norm, if that is a norm of this layer."""

    def get_classifier(self) -> Any:
        """The output layer; two of them if distilled; Identity without any."""
        layers = tuple(self.head_layers)
        return layers if len(layers) > 1 else layers[0] if layers else nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes layers in the backward pass instead of keeping their activations."""
        self.activation_checkpointing = enable

    @property
    def feature_info(self) -> list[dict[str, Any]]:
        """Channels and stride of each layer of `forward_intermediates`."""
        pairs = zip(self.layer_channels, self.layer_strides, strict=True)
        return [{"num_chs": channels, "reduction": stride} for channels, stride in pairs]

    def no_weight_decay(self) -> set[str]:
        """Parameters that are neither kernels nor covered by the rule of one dimension."""
        names = dict(self.named_parameters())  # pyright: ignore[reportAttributeAccessIssue]
        tokens = {"pos_embed", "cls_token", "dist_token", "reg_token", "attn_pool.latent"}
        return tokens & names.keys()

    def auxiliary_loss(self) -> Tensor | float:
        """What the layers add to the loss, by the last forward pass in training."""
        return 0.0

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """`forward_features` of images `b c h w`, and a list of what some layers give, in order.

        `indices`: of `feature_info`, or a number of last layers; None takes all. A ViT's entries
        are `b d gh gw`, or `b n d` with NLC; with `return_prefix_tokens` each is a pair with the
        other tokens `b p d`, if there are any. `stop_early`: the first result is of the largest
        index. `intermediates_only` returns the list alone. UserError for another index or format.
        """
        count, p = len(self.feature_info), self.num_prefix_tokens
        wanted = layer_indices(count if indices is None else indices, count)
        end = max(wanted) if stop_early or intermediates_only else count - 1
        if output_fmt not in ("NCHW", "NLC"):
            raise UserError(f"Output format must be one of NCHW or NLC, not {output_fmt}")
        outputs, last, grid = self._outputs(x, wanted, end)
        if grid is None and output_fmt == "NLC":
            raise UserError("Output shape must be NCHW, not NLC: this model has no tokens")
        found: list[Any] = [self._normed(y, i) if norm else y for i, y in outputs.items()]
        if grid is not None:
            prefixes, found = [y[:, :p] for y in found], [y[:, p:] for y in found]
            if output_fmt == "NCHW":
                found = [y.transpose(1, 2).unflatten(2, grid) for y in found]
            if return_prefix_tokens and p:
                found = list(zip(found, prefixes, strict=True))
        return found if intermediates_only else (self._normed(last, end), found)


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
