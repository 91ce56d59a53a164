"""Readings of attention weights, and the model is left as it was; weights: test_peers.py."""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.models.small_models import random_images, small_bit, small_hybrid, small_vit
from vit.errors import UserError
from vit.extensions import inspection
from vit.extensions.inspection import capture, gradients
from vit.models.vision_transformer import VisionTransformer

GAP: dict[str, Any] = {"pool": "gap", "class_token": False}
MAP: dict[str, Any] = {"pool": "map", "class_token": False}
GRID = (2, 4)


def model_and_maps(**kind: Any) -> tuple[VisionTransformer, Tensor, np.ndarray, int]:
    """A model, two images, their weights `b layers heads n n`, and the number of prefix tokens."""
    model = small_vit(image_size=(16, 32), **kind)
    images = random_images(2, 3, 16, 32)
    maps = inspection.attention(model, images, None).numpy()
    return model, images, maps, model.num_prefix_tokens


def close(result: Tensor, expected: np.ndarray) -> None:
    np.testing.assert_allclose(result.numpy(), expected, rtol=0, atol=1e-5)


def test_rollout_without_a_class_token_starts_from_all_patches() -> None:
    model, images, maps, _ = model_and_maps(**GAP)
    total = np.eye(8)
    for layer in maps.swapaxes(0, 1):
        total = (layer.mean(1) + np.eye(8)) / 2 @ total
    close(inspection.rollout(model, images), total.mean(1).reshape(2, *GRID))


@pytest.mark.parametrize("variant", [{}, {"mixer": "dot_product"}])
def test_weights_times_values_are_what_the_model_projects(variant: dict[str, Any]) -> None:
    model = small_vit(image_size=(16, 32), variant=variant)
    images, attn, inputs = random_images(2, 3, 16, 32), model.blocks[-1].attn, []
    with torch.no_grad(), ExitStack() as hooks:
        for module in (attn, attn.proj):
            keep = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
            hooks.enter_context(keep)
        model(images)
    values = attn.qkv(inputs[0]).unflatten(-1, (3, attn.num_heads, -1))[:, :, 2].transpose(1, 2)
    mixed = inspection.attention(model, images, None)[:, -1] @ values
    close(mixed.transpose(1, 2).flatten(2).detach(), inputs[1].numpy())


@pytest.mark.parametrize("kind", [{"num_registers": 2}, GAP])
def test_distance_is_weighted_by_attention(kind: dict[str, Any]) -> None:
    model, images, maps, p = model_and_maps(**kind)
    places = 8 * np.array(list(np.ndindex(GRID)))
    far = np.linalg.norm(places[:, None] - places, axis=-1)
    rows = maps[..., p:, p:]
    expected = (rows * far).sum(-1) / rows.sum(-1)
    close(inspection.attention_distance(model, images), expected.mean(-1))


def test_entropy_runs_from_one_token_to_all() -> None:
    model, images, maps, p = model_and_maps()
    rows = maps[..., p:, :]
    close(inspection.head_entropy(model, images), -(rows * np.log(rows)).sum(-1).mean(-1))
    with torch.no_grad():
        for block in model.blocks:
            block.get_parameter("attn.qkv.weight").zero_()
            block.get_parameter("attn.qkv.bias").zero_()
    close(inspection.head_entropy(model, images), np.full((2, 3, 4), np.log(9)))


def test_prefix_tokens_are_apart() -> None:
    model, images, maps, p = model_and_maps(num_registers=2)
    assert inspection.prefix_names(model) == ["class", "register 1", "register 2"]
    close(inspection.attention(model, images, [-1, 0]), maps[:, [0, 2]])
    last = maps[:, -1:]
    close(inspection.prefix_attention(model, images), last[..., p:, :p].mean(-2))
    close(inspection.class_attention(model, images), last[..., 0, p:].reshape(2, 1, 4, *GRID))
    patch = last[..., p + 6, p:].reshape(2, 1, 4, *GRID)
    close(inspection.patch_attention(model, images, (1, 2)), patch)


FUNCTIONS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "attention": lambda model, images: inspection.attention(model, images, None),
    "class_attention": inspection.class_attention,
    "rollout": inspection.rollout,
    "distance": inspection.attention_distance,
    "entropy": inspection.head_entropy,
    "gradient_rollout": inspection.gradient_rollout,
    "grad_cam": inspection.grad_cam,
    "colours": inspection.patch_colours,
    "similarity": lambda model, images: inspection.patch_similarity(model, images, (0, 0)),
}


def state_of(model: nn.Module) -> list[Any]:
    """Hooks, training modes and requested gradients of a model."""
    hooks = [
        (list(m._forward_hooks), list(m._forward_pre_hooks), list(m._backward_hooks), m.training)
        for m in model.modules()
    ]
    parameters = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    return [*hooks, parameters, model.activation_checkpointing]


class Stopped(Exception):
    pass


def stop(*_: object) -> None:
    raise Stopped


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_model_is_left_as_it_was(name: str) -> None:
    model = small_hybrid(drop_path=0.9)
    model.train()
    model.blocks[0].eval()
    model.norm.requires_grad_(False)
    model.patch_embed.register_forward_hook(lambda *_: None)  # the user's own
    images = random_images(2, 3, 32, 32)
    before = state_of(model)
    result = FUNCTIONS[name](model, images)
    assert not result.requires_grad
    assert state_of(model) == before
    torch.testing.assert_close(FUNCTIONS[name](model, images), result)  # no drop path
    model.blocks[-1].register_forward_hook(stop)
    before = state_of(model)
    with pytest.raises(Stopped):
        FUNCTIONS[name](model, images)
    assert state_of(model) == before


@pytest.mark.parametrize("name", ["attention", "rollout", "gradient_rollout"])
def test_weights_of_one_layer_exist_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, former = capture.weights, []

    def noted(q: Tensor, k: Tensor, bias: Tensor | None) -> Tensor:
        assert not any(reference() is not None for reference in former)
        result = weights(q, k, bias)
        former.append(weakref.ref(result))
        return result

    monkeypatch.setattr(capture, "weights", noted)
    monkeypatch.setattr(gradients, "weights", noted)
    FUNCTIONS[name](small_vit(), random_images(1, 3, 32, 32))
    assert len(former) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: inspection.rollout(small_bit(), x), "ResNet has no attention"),
        (lambda m, x: inspection.attention(m, x, [5]), "outside the 3 layers"),
        (lambda m, x: inspection.rollout(m, x[..., :5, :]), "does not divide into patches of 8"),
        (lambda m, x: inspection.rollout(m, x[..., :12, :]), "does not divide into patches of 8"),
        (lambda m, x: inspection.patch_attention(m, x, (4, 0)), "outside the 4x4 patches"),
        (lambda m, x: inspection.patch_similarity(m, x, (0, -1)), "outside the 4x4 patches"),
        (lambda _, x: inspection.class_attention(small_vit(**GAP), x), "no class token"),
        (lambda _, x: inspection.prefix_attention(small_vit(**GAP), x), "no class, distillation"),
        (lambda _, x: inspection.rollout(small_vit(**MAP), x), "pools by attention"),
    ],
)
def test_what_does_not_exist_is_refused(
    call: Callable[[VisionTransformer, Tensor], object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        call(small_vit(), random_images(1, 3, 32, 32))
