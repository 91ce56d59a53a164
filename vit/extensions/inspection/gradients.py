"""Relevance of patches for a class: gradient-weighted rollout, and Grad-CAM for feature maps.

Shapes: b batch, k classes, gh gw rows and columns of the map, n tokens, d width.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.inspection.capture import (
    Inputs,
    attention_of,
    bias_of,
    evaluation,
    has_attention,
    queries_keys_values,
    transformer,
    weights,
)
from vit.extensions.inspection.maps import read_map
from vit.models.backbone import check_channels

Classes = int | Sequence[int] | Tensor | None


def gradient_rollout(model: nn.Module, images: Tensor, classes: Classes = None) -> Tensor:
    """Relevance of the patches for a class, `b gh gw` (Chefer et al., arXiv:2103.15679, eqs. 5-6).

    A <- the mean over heads of the positive part of dy/dA * A; R <- R + A R from the first layer to
    the last, with R = 1 at first; y is the class's logit. Rows are read as in `rollout`.
    `classes`: one index for all images, one per image, or None for the predicted class. Raises
    UserError for a model without a head and an unknown class.
    """
    vit = transformer(model)
    check_head(vit)
    depth = len(vit.blocks)
    inputs: dict[int, Inputs] = {}
    outputs: dict[int, Tensor] = {}

    def keep(index: int):
        def hook(_: nn.Module, args: Inputs, output: Tensor) -> None:
            # A recomputed layer (activation checkpointing) passes here once more.
            if index not in outputs:
                inputs[index], outputs[index] = (args[0].detach(), *args[1:]), output

        return hook

    with torch.enable_grad(), evaluation(vit), _frozen(vit):
        with ExitStack() as hooks:
            for i in range(depth):
                hooks.enter_context(attention_of(vit, i).register_forward_hook(keep(i)))
            logits = vit(images.detach().clone().requires_grad_())
        score = class_scores(logits, classes).sum()
        grads = torch.autograd.grad(score, [outputs.pop(i) for i in range(depth)])
    with torch.no_grad():
        total = torch.eye(grads[0].shape[1], device=images.device)
        for i in range(depth):
            relevance = _relevance(attention_of(vit, i), inputs.pop(i), grads[i])
            total = total + relevance @ total.to(relevance)
    return read_map(vit, images, total)


def _relevance(module: Any, inputs: Inputs, grad: Tensor) -> Tensor:
    """Mean over heads of (dy/dA * A)+, `b n n`, from an attention module's inputs and dy/d(output).

    The output is proj(A v), so dy/d(A v) is grad W, and dy/dA its product with v.
    """
    q, k, v = queries_keys_values(module, *inputs)
    projection = module.get_submodule("proj").get_parameter("weight")
    grad = (grad.to(projection.dtype) @ projection).to(q).unflatten(-1, (q.shape[1], -1))
    grad = grad.transpose(1, 2)  # b heads n e
    products = grad @ v.transpose(-1, -2)
    if hasattr(module, "value_products"):  # what is added to v depends on the place
        products += module.value_products(grad, inputs[1])
    products *= weights(q, k, bias_of(module, q, inputs[1]))
    return products.clamp_min_(0).mean(1)


def grad_cam(model: nn.Module, images: Tensor, classes: Classes = None) -> Tensor:
    """Grad-CAM of the last feature maps, `b gh gw`, at least 0 (arXiv:1610.02391, eqs. 1-2).

    The maps are a ResNet's after its final norm and ReLU, or a hybrid's before the patch embedding.
    A map's weight is the mean of dy/dA over its positions; y is the class's logit.
    `classes` and errors as in `gradient_rollout`; also UserError for a model without convolutions.
    """
    check_head(model)
    maps: list[Tensor] = []

    def keep(_: nn.Module, __: object, output: Tensor) -> Tensor:
        maps[:] = [output.detach().requires_grad_()]
        return maps[0]

    with torch.enable_grad(), evaluation(model), _frozen(model):
        if not has_attention(model):
            check_channels(images, model.config.in_channels)  # pyright: ignore
            with torch.no_grad():
                maps.append(model.forward_features(images))  # pyright: ignore
            logits = model.forward_head(maps[0].requires_grad_())  # pyright: ignore
        elif model.patch_embed.backbone is None:
            raise UserError("this model has no convolutional maps; use gradient_rollout")
        else:
            with model.patch_embed.backbone.register_forward_hook(keep):
                logits = model(images)
        [grad] = torch.autograd.grad(class_scores(logits, classes).sum(), maps)
    weight = grad.mean((2, 3), keepdim=True)
    return (weight * maps[0].detach()).sum(1).relu()


def check_head(model: nn.Module) -> None:
    """UserError for a model without classes."""
    if not model.config.num_classes:  # pyright: ignore
        raise UserError(
            "this model is an encoder without classes, so it has no class to explain; use one "
            "with a head"
        )


def class_scores(logits: Tensor, classes: Classes) -> Tensor:
    """The logit of each image's class, `b`; None is the predicted class."""
    b, k = logits.shape
    indices = logits.argmax(1) if classes is None else torch.as_tensor(classes).to(logits.device)
    if indices.ndim > 1 or indices.numel() not in (1, b) or indices.is_floating_point():
        raise UserError(f"classes={classes!r} must be one index, or one per image ({b})")
    if int(indices.min()) < 0 or int(indices.max()) >= k:
        raise UserError(f"classes={classes!r}: the model has classes 0 to {k - 1}")
    return logits.gather(1, indices.long().reshape(-1, 1).expand(b, 1))[:, 0]


@contextmanager
def _frozen(model: Any) -> Iterator[None]:
    """Freezes parameters and recomputes layers: ViT-B/16 at 384 pixels then needs a third of the
    memory."""
    recompute = model.activation_checkpointing
    model.activation_checkpointing = True
    needing = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in needing:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        model.activation_checkpointing = recompute
        for parameter in needing:
            parameter.requires_grad_()
