"""Attention weights of chosen layers, one layer at a time, from an unchanged model.

The model computes with its own fused kernels, which never form the weights. A hook computes them
from the input of the attention modules that were asked for.
Shapes: b batch, heads, n tokens, e channels per head, gh gw rows and columns of patches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.models.backbone import check_channels, layer_indices
from vit.models.config import ViTConfig
from vit.models.rotary import Rotation, rotated
from vit.models.vision_transformer import VisionTransformer

Inputs = tuple[Any, ...]
"""Arguments of an attention module: tokens `b n d`, and a rotation if the model has one."""
Receiver = Callable[[int, nn.Module, Inputs], None]
"""Takes a layer's index, its attention module and the inputs of that module."""


def has_attention(model: nn.Module) -> TypeGuard[VisionTransformer]:
    """True for a Vision Transformer or a hybrid."""
    return isinstance(getattr(model, "config", None), ViTConfig)


def transformer(model: nn.Module) -> VisionTransformer:
    """The model, if it has attention. UserError otherwise."""
    if not has_attention(model):
        raise UserError(
            f"{type(model).__name__} has no attention; vit.inspection.grad_cam shows what a ResNet "
            "looks at"
        )
    return model


def grid_of(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """(rows, columns) of patches of images `b c h w`. UserError if they have no whole patch."""
    config: ViTConfig = transformer(model).config
    check_channels(images, config.in_channels)
    (height, width), side = images.shape[-2:], config.patch_size
    if min(height, width) < side:
        raise UserError(
            f"an image of {height}x{width} pixels is smaller than a patch of {side}x{side}; use a "
            "larger image"
        )
    return height // side, width // side


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module has the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def each_layer(
    model: nn.Module, images: Tensor, layers: int | Sequence[int] | None, receive: Receiver
) -> None:
    """Calls `receive` in each of `layers` during one forward pass without gradients.

    `layers` as in `intermediate_layers`, None for all. Layers after the last one are not computed.
    """
    vit = transformer(model)
    grid_of(vit, images)
    indices = chosen_layers(vit, layers)

    def hook(index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda module, inputs: receive(index, module, inputs)

    with torch.no_grad(), evaluation(vit), ExitStack() as hooks:
        for i in indices:
            hooks.enter_context(attention_of(vit, i).register_forward_pre_hook(hook(i)))
        vit.intermediate_layers(images, [indices[-1]], norm=False)


def attention_of(model: VisionTransformer, layer: int) -> nn.Module:
    """The attention module of a layer."""
    return model.blocks[layer].get_submodule("attn")


def chosen_layers(model: VisionTransformer, layers: int | Sequence[int] | None) -> list[int]:
    """Ascending indices of layers, without repetition. UserError for one that does not exist."""
    depth = model.config.depth
    return sorted(set(layer_indices(depth if layers is None else layers, depth)))


def queries_keys_values(
    module: nn.Module, x: Tensor, rotation: Rotation | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each `b heads n e`, of an attention module with input `b n d`.

    In at least float32, as in the kernels that the model uses; turned by the rotation, if any.
    """
    qkv = module.get_submodule("qkv")(x)
    qkv = qkv if qkv.dtype == torch.float64 else qkv.float()
    heads: int = module.num_heads  # pyright: ignore[reportAssignmentType]
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if rotation is not None:
        q, k = rotated(q, rotation), rotated(k, rotation)
    return q, k, v


def weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(e)), `b heads n n` (arXiv:2010.11929, equation 6)."""
    return (q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5).softmax(-1)


def attention_weights(module: nn.Module, inputs: Inputs) -> Tensor:
    """Attention weights `b heads n n` of an attention module with these inputs."""
    q, k, _ = queries_keys_values(module, *inputs)
    return weights(q, k)
