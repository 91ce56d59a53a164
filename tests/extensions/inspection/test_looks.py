"""Pictures of what a model looked at."""

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image

from tests.models.small_models import small_bit, small_hybrid, small_vit
from vit.data.settings import InputFormat
from vit.extensions.inspection import grad_cam, rollout
from vit.extensions.inspection.figures import overlay
from vit.extensions.inspection.looks import Look, glances


def photo() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((96, 72))


def test_an_overlay_shows_the_photo_in_grey_below_the_heat_map() -> None:
    red = Image.new("RGB", (8, 8), (200, 0, 0))
    values = torch.tensor([[0.0, 1.0]]).repeat(2, 1)
    shown = np.asarray(overlay(red, values)).astype(float)
    grey = 70 + 145 * 0.299 * 200 / 255  # of ITU-R 601
    np.testing.assert_allclose(shown[0, 0], grey, atol=1)  # no colour where the map is 0
    heat = 255 * np.array(colormaps["inferno"](1.0)[:3])
    np.testing.assert_allclose(shown[0, -1], 0.2 * grey + 0.8 * heat, atol=1)
    assert (np.diff(shown[0, 4:].sum(1)) >= 0).all()


@pytest.mark.parametrize("build", [small_vit, small_hybrid, small_bit])
@pytest.mark.parametrize("training", [False, True])
def test_the_picture_is_the_rollout_or_the_cam_of_the_class(build: Any, training: bool) -> None:
    model = build().train(training)
    preprocess = InputFormat().preprocess((64, 64))
    glance = glances(model, preprocess)
    assert glance is not None
    name, look = glance
    assert name == ("Grad-CAM" if build is small_bit else "attention rollout")
    seen = preprocess(photo())
    pixels = preprocess.normalize(seen[None])
    values = grad_cam(model, pixels, 2) if build is small_bit else rollout(model, pixels)
    expected = overlay(Image.fromarray(seen.permute(1, 2, 0).numpy()), values[0])
    with torch.inference_mode():  # as after an evaluation
        drawn = look(photo(), 2)
    assert drawn is not None and np.array_equal(np.asarray(drawn), np.asarray(expected))
    assert model.training == training


@pytest.mark.parametrize("class_token", [True, False])
def test_maps_of_heads_are_of_the_class_token_else_of_all_patches(class_token: bool) -> None:
    weights, grid = torch.rand(2, 3, 8, 8), (2, 3)
    look = Look(photo=None, pictures=[], weights=weights, grid=grid, has_class_token=class_token)  # type: ignore[arg-type]
    rows = weights[:, :, 0, 2:] if class_token else weights[:, :, 2:, 2:].mean(2)
    assert torch.equal(look.maps, rows.unflatten(-1, grid))


def test_nothing_is_drawn_after_the_time_and_where_no_method_exists() -> None:
    preprocess = InputFormat().preprocess((64, 64))
    glance = glances(small_vit(), preprocess, seconds=-1)
    assert glance is not None
    assert glance[1](photo(), 0) is not None and glance[1](photo(), 0) is None  # the first always
    assert glances(small_vit(pool="map"), preprocess) is None
    assert glances(small_vit(in_channels=1), preprocess) is None
    compiled = small_vit()
    compiled.compile(backend="eager")
    assert glances(compiled, preprocess) is None
