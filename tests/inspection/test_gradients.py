"""Gradient rollout and Grad-CAM equal NumPy, whose derivatives are central differences."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.inspection.numpy_attention import Array, differences, embeddings, forward, numbers
from tests.models.small_models import random_images, small_bit, small_hybrid, small_vit
from vit import inspection
from vit.errors import UserError

SIZES: dict[str, Any] = {"image_size": (16, 24), "width": 16, "mlp_dim": 24, "num_heads": 2}


def expected_relevance(image: Array, model: Any, label: int) -> Array:
    """Equations 5 and 6 of arXiv:2103.15679."""
    weights, depth, pool = numbers(model), len(model.blocks), model.config.pool
    patches, p = embeddings(image, weights, 8), model.num_prefix_tokens
    _, maps = forward(patches, weights, depth, 2, pool=pool)
    total = np.eye(maps[0].shape[-1])
    for i, attention in enumerate(maps):

        def score(change: Array, i: int = i) -> float:
            changed = {i: change}
            return forward(patches, weights, depth, 2, pool=pool, changes=changed)[0][label]

        grad = differences(score, np.zeros_like(attention))
        total = total + np.maximum(grad * attention, 0).mean(0) @ total
    row = total[0] if p else total.mean(0)
    return row[p:].reshape(patches.shape[:2])


@pytest.mark.parametrize(
    "kind",
    [{}, {"num_registers": 1}, {"pool": "gap", "class_token": False}],
    ids=["class token", "register", "mean of patches"],
)
def test_gradient_rollout_equals_numpy(kind: dict[str, Any]) -> None:
    model = small_vit(**SIZES, **kind, depth=2).double()
    images = random_images(2, 3, 16, 24).double()
    labels = [4, 1]
    result = inspection.gradient_rollout(model, images, labels)
    for image, label, relevance in zip(images.numpy(), labels, result.numpy(), strict=True):
        expected = expected_relevance(image, model, label)
        assert expected.std() > 1e-3
        np.testing.assert_allclose(relevance, expected, rtol=0, atol=1e-5)
    single = inspection.gradient_rollout(model.float(), images.float(), torch.tensor(labels))
    torch.testing.assert_close(single, result.float(), rtol=0, atol=1e-5)


def test_recomputed_layers_and_frozen_weights_give_the_same() -> None:
    model, images = small_vit(), random_images(2, 3, 32, 32)
    expected = inspection.gradient_rollout(model, images)
    model.activation_checkpointing = True
    model.requires_grad_(False)
    with torch.no_grad():
        torch.testing.assert_close(inspection.gradient_rollout(model, images), expected)


def test_the_predicted_class_is_the_default() -> None:
    images = random_images(3, 3, 32, 32)
    for model, function in (
        (small_vit(), inspection.gradient_rollout),
        (small_bit(), inspection.grad_cam),
    ):
        predicted = model(images).argmax(1)
        torch.testing.assert_close(function(model, images), function(model, images, predicted))
        other = (int(predicted[0]) + 1) % 7
        assert not torch.equal(function(model, images, other), function(model, images))


def test_grad_cam_of_a_resnet_equals_numpy() -> None:
    model, images = small_bit(), random_images(2, 3, 64, 96)
    weights = numbers(model)
    kernel, bias = weights["head.fc.weight"][:, :, 0, 0], weights["head.fc.bias"]
    with torch.no_grad():
        maps = model.forward_features(images).double().numpy()
    assert maps.shape[2:] == (4, 6)
    for image, result in zip(maps, inspection.grad_cam(model, images, 5).numpy(), strict=True):
        # The score is linear in the maps, so one position of each map gives the mean gradient.
        alpha = []
        for c in range(len(image)):
            up, down = image.copy(), image.copy()
            up[c, 0, 0], down[c, 0, 0] = up[c, 0, 0] + 1, down[c, 0, 0] - 1
            scores = [(kernel @ m.mean((1, 2)) + bias)[5] for m in (up, down)]
            alpha.append((scores[0] - scores[1]) / 2)
        cam = np.maximum(np.tensordot(np.array(alpha), image, 1), 0)  # equations 1 and 2
        assert cam.max() > 0.01
        np.testing.assert_allclose(result, cam, rtol=0, atol=1e-5)


def test_grad_cam_of_a_hybrid_equals_numpy() -> None:
    model = small_hybrid(width=16, num_heads=2, mlp_dim=24).double()
    images = random_images(1, 3, 32, 32).double()
    weights = numbers(model)
    with torch.no_grad():
        [maps] = model.patch_embed.backbone(images, False).numpy()  # pyright: ignore
    kernel, bias = weights["patch_embed.proj.weight"][:, :, 0, 0], weights["patch_embed.proj.bias"]
    patches = np.einsum("dc,chw->hwd", kernel, maps) + bias
    grad = differences(lambda x: forward(x, weights, 2, 2)[0][3], patches)
    alpha = np.einsum("hwd,dc->c", grad, kernel) / 4  # mean over positions of dy/dmaps
    expected = np.maximum(np.tensordot(alpha, maps, 1), 0)
    assert expected.max() > 1e-3
    [cam] = inspection.grad_cam(model, images, 3).numpy()
    np.testing.assert_allclose(cam, expected, rtol=0, atol=1e-5)


def test_unknown_classes_and_missing_heads_are_refused() -> None:
    images = random_images(2, 3, 32, 32)
    for classes in (7, [1, 2, 3]):
        with pytest.raises(UserError, match="classes="):
            inspection.grad_cam(small_hybrid(), images, classes)
    for function in (inspection.gradient_rollout, inspection.grad_cam):
        with pytest.raises(UserError, match="encoder without classes"):
            function(small_hybrid(num_classes=0), images)
    with pytest.raises(UserError, match="no convolutional maps"):
        inspection.grad_cam(small_vit(), images)
