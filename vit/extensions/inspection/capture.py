"""Attention weights of chosen layers, one layer at a time.

The model's fused kernels never form the weights: a hook computes them from the inputs of attention
modules.
Shapes: b batch, heads, n tokens, e channels per head, gh gw rows and columns of patches.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.models.backbone import layer_indices
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Place, rotated
from vit.models.vision_transformer import VisionTransformer

Inputs = tuple[Any, ...]
"""Arguments of an attention module: tokens `b n d` and their place."""
Receiver = Callable[[int, nn.Module, Inputs], None]
"""Takes a layer's index, its attention module and the inputs of that module."""


def has_attention(model: nn.Module) -> TypeGuard[VisionTransformer]:
    """True for Vision Transformers and hybrids."""
    return isinstance(getattr(model, "config", None), ViTConfig)


def transformer(model: nn.Module) -> VisionTransformer:
    """The model; UserError if it has no attention."""
    if not has_attention(model):
        raise UserError(
            f"{type(model).__name__} has no attention; vit.extensions.inspection.grad_cam shows "
            "what a ResNet looks at"
        )
    return model


def grid_of(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """(rows, columns) of patches of images `b c h w`."""
    (height, width), side = images.shape[-2:], transformer(model).config.patch_size
    return height // side, width // side


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, for the time being."""
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
    indices = chosen_layers(vit, layers)
    with torch.no_grad(), evaluation(vit), ExitStack() as hooks:
        for i in indices:
            hook = partial(receive, i)
            hooks.enter_context(attention_of(vit, i).register_forward_pre_hook(hook))
        vit.intermediate_layers(images, [indices[-1]], norm=False)


def attention_of(model: VisionTransformer, layer: int) -> nn.Module:
    """Attention module of a layer. UserError if something else is in its place, or if layers are
    the same one, or are on another grid than the patches."""
    if "stack" in model.config.variant:
        raise UserError(
            "attention maps are of layers on all patches, each its own: no variant.stack"
        )
    module = model.blocks[layer].get_submodule("attn")
    if not isinstance(module, Attention):
        raise UserError("this model's mixer has no attention weights")
    return module


def chosen_layers(model: VisionTransformer, layers: int | Sequence[int] | None) -> list[int]:
    """Ascending indices without repetition. UserError for a layer that does not exist."""
    depth = model.config.depth
    return sorted(set(layer_indices(depth if layers is None else layers, depth)))


def queries_keys_values(
    module: nn.Module, x: Tensor, place: Place
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each `b heads n e`, of an attention module with input `b n d`.

    In at least float32, as in the kernels that the model uses; turned by the rotation, if any.
    """
    qkv = module.get_submodule("qkv")(x)
    qkv = qkv if qkv.dtype == torch.float64 else qkv.float()
    heads: int = module.num_heads  # pyright: ignore[reportAssignmentType]
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    if not getattr(module, "scaled", True):  # as `weights` divides
        q = q * q.shape[-1] ** 0.5
    return rotated(q, place), rotated(k, place), v


def weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(e) + bias), `b heads n n` (arXiv:2010.11929, equation 6)."""
    scores = (q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5)
    return (scores if bias is None else scores.add_(bias)).softmax(-1)


def attention_weights(module: Any, inputs: Inputs) -> Tensor:
    """`weights` of an attention module with these inputs."""
    q, k, _ = queries_keys_values(module, *inputs)
    return weights(q, k, bias_of(module, q, inputs[1]))


def bias_of(module: Any, q: Tensor, place: Place) -> Tensor | None:
    """Bias of the scores of queries, by the place or by a variant's attention."""
    return module.bias(q, place) if hasattr(module, "bias") else place.bias
