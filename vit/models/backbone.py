"""Base of all architectures: outputs of single layers, under the names of DINOv2 and timm."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint  # pyright: ignore[reportUnknownVariableType]

from vit.errors import UserError
from vit.models.fields import JsonObject

P = ParamSpec("P")


class Backbone(nn.Module):
    """A network whose layers can be read one by one.

    Attributes: `num_features`, or `head_hidden_size` (input width of the head), `embed_dim` (of
    `features`), `patch_size` (token stride in pixels), `layer_channels` and `layer_strides` (of
    `intermediate_layers`), `num_prefix_tokens` (before the patches), and
    `activation_checkpointing`: if True, the backward pass recomputes each layer, with about 1/depth
    of the memory and 4/3 of the work.
    """

    num_features: int
    head_hidden_size: int
    embed_dim: int
    patch_size: int
    layer_channels: list[int]
    layer_strides: list[int]
    stem_features: tuple[tuple[int, int], ...] = ()
    """(channels, stride) of the entries of `feature_info` before those of the layers."""
    num_prefix_tokens = 0
    has_class_token = False
    activation_checkpointing = False
    preprocess: JsonObject | None = None
    """Preprocessing of the weights, for `vit.transforms`: {} if not recorded, None if fresh."""
    inherited: Mapping[str, object] = {}
    """Facts of the weights that are saved with all that is made of them (table `inherited`)."""

    @property
    @abstractmethod
    def head_layers(self) -> Sequence[nn.Module]:
        """The output layers: one, two if distilled, none if num_classes is 0."""

    @abstractmethod
    def _outputs(
        self, images: Tensor, wanted: Sequence[int], end: int
    ) -> tuple[dict[int, Tensor], Tensor]:
        """Outputs of the `wanted` indices of `feature_info`, and the output of the index `end`."""

    @abstractmethod
    def _normed(self, x: Tensor, layer: int) -> Tensor:
        """A layer's output after the final norm, if that is a norm of this layer."""

    @abstractmethod
    def _parts(self, x: Tensor, layer: int, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """A layer's output as a map `b d gh gw`, and its prefix tokens `b p d`; None for a network
        without tokens."""

    def get_classifier(self) -> nn.Module | tuple[nn.Module, ...]:
        """The output layer; two of them if distilled; Identity without any."""
        layers = tuple(self.head_layers)
        return layers if len(layers) > 1 else layers[0] if layers else nn.Identity()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recomputes layers in the backward pass instead of keeping their activations."""
        self.activation_checkpointing = enable

    @property
    def feature_info(self) -> list[dict[str, int]]:
        """Channels and stride of each layer of `forward_intermediates`."""
        pairs = zip(self.layer_channels, self.layer_strides, strict=True)
        pairs = (*self.stem_features, *pairs)
        return [{"num_chs": channels, "reduction": stride} for channels, stride in pairs]

    def no_weight_decay(self) -> set[str]:
        """Parameters that are neither kernels nor covered by the rule of one dimension."""
        tokens = {"pos_embed", "cls_token", "dist_token", "reg_token", "attn_pool.latent"}
        return tokens & {name for name, _ in self.named_parameters()}

    def auxiliary_loss(self) -> Tensor | float:
        """Terms that the layers add to the loss, by the last forward pass in training."""
        return 0.0

    def intermediate_layers(
        self,
        images: Tensor,
        layers: int | Sequence[int] = 1,
        *,
        reshape: bool = True,
        norm: bool = True,
        return_cls: bool = False,
    ) -> list[Any]:
        """Outputs of some layers, like DINOv2's get_intermediate_layers; of a ResNet, its stages.

        `layers`: number of last layers, or indices. Each entry is `b d gh gw`, or `b n d` without
        `reshape`; with `return_cls` a pair of it and the class token `b d`, if any. `norm` applies
        the final norm; a ResNet's, with its ReLU, is of the last stage only.
        """
        before = len(self.stem_features)
        indices = [before + i for i in layer_indices(layers, len(self.layer_channels))]
        outputs, _ = self._outputs(images, indices, max(indices))
        entries: list[Tensor | tuple[Tensor, Tensor | None]] = []
        for i in indices:
            x = self._normed(outputs[i], i) if norm else outputs[i]
            maps, prefix = self._parts(x, i, images)
            tokens = maps if reshape else maps.flatten(2).transpose(1, 2)
            cls = prefix[:, 0] if prefix is not None and self.has_class_token else None
            entries.append((tokens, cls) if return_cls else tokens)
        return entries

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
        """`forward_features` of images `b c h w`, and a list of the outputs of some layers, in
        order; timm's method.

        `indices`: of `feature_info`, or a number of last layers; None takes all. A ViT's entries
        are `b d gh gw`, or `b n d` with NLC; with `return_prefix_tokens` each is a pair with the
        other tokens `b p d`, if there are any. `stop_early`: the first result is of the largest
        index. `intermediates_only` returns the list alone. UserError for another index or format.
        """
        count = len(self.feature_info)
        wanted = layer_indices(count if indices is None else indices, count)
        end = max(wanted) if stop_early or intermediates_only else count - 1
        if output_fmt not in ("NCHW", "NLC"):
            raise UserError(f"Output format must be one of NCHW or NLC, not {output_fmt}")
        outputs, last = self._outputs(x, wanted, end)
        entries: list[Tensor | tuple[Tensor, Tensor | None]] = []
        for i, output in outputs.items():
            maps, prefix = self._parts(self._normed(output, i) if norm else output, i, x)
            if output_fmt == "NLC" and prefix is None:
                raise UserError("Output shape must be NCHW, not NLC: this model has no tokens")
            tokens = maps if output_fmt == "NCHW" else maps.flatten(2).transpose(1, 2)
            paired = return_prefix_tokens and self.num_prefix_tokens
            entries.append((tokens, prefix) if paired else tokens)
        return entries if intermediates_only else (self._normed(last, end), entries)


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


def run(layer: Callable[P, Tensor], recompute: bool, *args: P.args, **options: P.kwargs) -> Tensor:
    """`layer(*args)`; with `recompute`, the backward pass recomputes it and only the arguments are
    saved."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(layer, *args, use_reentrant=False, **options)
    return layer(*args, **options)
