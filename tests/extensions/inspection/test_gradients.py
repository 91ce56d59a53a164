"""Grad-CAM equals central differences; gradient rollout: test_peers.py."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.models.small_models import random_images, small_bit, small_hybrid, small_vit
from vit.errors import UserError
from vit.extensions import inspection


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


def cam_by_differences(maps: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """Equations 1 and 2 of arXiv:1610.02391 for maps `1 c h w` and their scores `b`."""
    step = 1e-4 * torch.eye(maps.shape[1]).to(maps)[:, :, None, None]
    slope = (score(maps + step) - score(maps - step)) / 2e-4  # all positions of a map together
    alpha = slope / maps[0, 0].numel()
    return (alpha[:, None, None] * maps[0]).sum(0).relu()


@torch.no_grad()
def test_grad_cam_of_a_resnet_is_that_of_its_last_maps() -> None:
    model, images = small_bit().double(), random_images(1, 3, 32, 48).double()
    maps = model.forward_features(images)
    assert maps.shape[2:] == (2, 3)
    expected = cam_by_differences(maps, lambda changed: model.forward_head(changed)[:, 5])
    assert expected.max() > 0.01
    torch.testing.assert_close(inspection.grad_cam(model, images, 5)[0], expected)


@torch.no_grad()
def test_grad_cam_of_a_hybrid_is_that_of_its_stem(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_hybrid(width=16, num_heads=2, mlp_dim=24).double()
    images = random_images(1, 3, 32, 32).double()
    cam = inspection.grad_cam(model, images, 3)[0]
    backbone = model.patch_embed.backbone
    assert backbone is not None
    maps = backbone(images, False)

    def score(changed: Tensor) -> Tensor:
        monkeypatch.setattr(backbone, "forward", lambda *_: changed)
        return model(images.expand(len(changed), -1, -1, -1))[:, 3]

    expected = cam_by_differences(maps, score)
    assert expected.max() > 1e-3
    torch.testing.assert_close(cam, expected, rtol=1e-4, atol=1e-6)


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
