"""Maps, rollout, distance and entropy equal NumPy, and the model is left as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.inspection.numpy_attention import Array, embeddings, forward, numbers
from tests.models.small_models import random_images, small_bit, small_hybrid, small_vit
from vit import inspection
from vit.errors import UserError
from vit.inspection import capture
from vit.models.vision_transformer import VisionTransformer

SIZES: dict[str, Any] = {"image_size": (16, 32), "num_heads": 4, "depth": 3}
GRID = (2, 4)
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers": {"num_registers": 2},
    "mean of patches": {"pool": "gap", "class_token": False, "pos_embed_class_slot": False},
}


def model_and_maps(kind: str) -> tuple[VisionTransformer, Tensor, list[list[Array]], int]:
    """A model, two images, NumPy's weights per image and layer, and the number of prefix tokens."""
    model = small_vit(**SIZES, **KINDS[kind])
    images = random_images(2, 3, 16, 32)
    weights = numbers(model)
    pool = model.config.pool
    maps = [
        forward(embeddings(image, weights, 8), weights, 3, 4, pool=pool)[1]
        for image in images.double().numpy()
    ]
    return model, images, maps, model.num_prefix_tokens


def close(result: Tensor, expected: Array | list[Any]) -> None:
    np.testing.assert_allclose(result.numpy(), np.asarray(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_equation_6(kind: str) -> None:
    model, images, maps, _ = model_and_maps(kind)
    close(inspection.attention(model, images, None), maps)
    close(inspection.attention(model, images, [-1, 0]), [[m[0], m[2]] for m in maps])


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_multiplies_mean_weights_and_the_identity(kind: str) -> None:
    model, images, maps, p = model_and_maps(kind)
    expected = []
    for layers in maps:
        total = np.eye(len(layers[0][0]))
        for heads in layers:  # arXiv:2005.00928, section 3: A = 0.5 W + 0.5 I
            total = (0.5 * heads.mean(0) + 0.5 * np.eye(len(total))) @ total
        row = total[0] if p else total.mean(0)
        expected.append(row[p:].reshape(GRID))
    close(inspection.rollout(model, images), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_distance_is_weighted_by_attention(kind: str) -> None:
    model, images, maps, p = model_and_maps(kind)
    places = [(8 * (i // 4), 8 * (i % 4)) for i in range(8)]
    expected = np.zeros((2, 3, 4))
    for index in np.ndindex(2, 3, 4):
        b, layer, head = index
        for i, (y, x) in enumerate(places):
            row = maps[b][layer][head][p + i, p:]
            far = [np.hypot(y - other, x - beside) for other, beside in places]
            expected[index] += np.dot(row, far) / row.sum() / len(places)
    close(inspection.attention_distance(model, images), expected)


def test_entropy_runs_from_one_token_to_all() -> None:
    model, images, maps, p = model_and_maps("class token")
    expected = [[[-(h[p:] * np.log(h[p:])).sum(1).mean() for h in m] for m in i] for i in maps]
    close(inspection.head_entropy(model, images), expected)
    with torch.no_grad():
        for block in model.blocks:
            block.get_parameter("attn.qkv.weight").zero_()
            block.get_parameter("attn.qkv.bias").zero_()
    close(inspection.head_entropy(model, images), np.full((2, 3, 4), np.log(9)))


def test_prefix_tokens_are_apart() -> None:
    model, images, maps, p = model_and_maps("registers")
    assert inspection.prefix_names(model) == ["class", "register 1", "register 2"]
    last = [m[-1] for m in maps]
    shares = [[h[p:, :p].mean(0) for h in m] for m in last]
    close(inspection.prefix_attention(model, images)[:, 0], shares)
    rows = [m[:, 0, p:].reshape(-1, *GRID) for m in last]
    close(inspection.class_attention(model, images)[:, 0], rows)
    rows = [m[:, p + 6, p:].reshape(-1, *GRID) for m in last]
    close(inspection.patch_attention(model, images, (1, 2))[:, 0], rows)


@pytest.mark.parametrize("build", [small_vit, small_hybrid])
def test_any_size_and_aspect(build: Callable[[], VisionTransformer]) -> None:
    model, images = build(), random_images(1, 3, 32, 80)
    grid = 32 // model.patch_size, 80 // model.patch_size
    assert inspection.rollout(model, images).shape == (1, *grid)
    assert inspection.class_attention(model, images).shape == (1, 1, 4, *grid)
    assert inspection.patch_colours(model, images).shape == (1, *grid, 3)


FUNCTIONS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "attention": inspection.attention,
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


def test_only_asked_layers_are_materialised(monkeypatch: pytest.MonkeyPatch) -> None:
    model, shapes, layers = small_vit(depth=4), [], []
    weights, run = capture.weights, model.blocks[3].forward

    def counted(q: Tensor, k: Tensor) -> Tensor:
        shapes.append(q.shape)
        return weights(q, k)

    monkeypatch.setattr(capture, "weights", counted)
    monkeypatch.setattr(model.blocks[3], "forward", lambda x: layers.append(3) or run(x))
    inspection.class_attention(model, random_images(1, 3, 32, 32), [2, 0])
    assert (len(shapes), layers) == (2, [])  # the layer after the last one is not computed
    inspection.class_attention(model, random_images(1, 3, 32, 32))
    assert (len(shapes), layers) == (3, [3])


GAP: dict[str, Any] = {"pool": "gap", "class_token": False}
MAP: dict[str, Any] = {"pool": "map", "class_token": False}


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
