"""Trainings of recipes and of the paper, with a known cost."""

from pathlib import Path

import pytest

from vit.errors import UserError
from vit.extensions.compute.trainings import UNNAMED, CostOptions, recipe_trainings
from vit.models.zoo import model_config
from vit.recipes import list_recipes


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_has_a_length_or_reports_what_is_missing(name: str) -> None:
    try:
        [training], _ = recipe_trainings(CostOptions(recipe=name))
    except UserError as error:
        assert str(error).startswith(f"recipe {name!r}")
        model = "vit_h14" if name == "pretrain/dinov2_continue" else "vit_s16"  # of 98 pixels
        missing = {"images": 1e6} if "add --images N" in str(error) else {}
        [training], _ = recipe_trainings(CostOptions(recipe=name, models=[model], **missing))
    assert training.images > 0


def test_a_recipe_without_a_name_trains_what_vit_fit_trains() -> None:
    from vit.training.image_classifier import ImageClassifier

    assert ImageClassifier().model.config == model_config(UNNAMED)


@pytest.mark.parametrize(
    ("data", "trainer", "images"),
    [
        ("batch_size: 64", "max_steps: 10, accumulate_grad_batches: 2", 1280),
        ("global_batch: 96", "max_steps: 10", 960),
        ("global_batch: 96, batch_size: 32", "max_steps: 10", 960),
        ("global_batch: 96", "max_steps: 10, accumulate_grad_batches: 3", 960),
        ("global_batch: 400", "max_epochs: 2, accumulate_grad_batches: 2", 2 * 1200),
        ("global_batch: 400, batch_size: null", "max_epochs: 2", 2 * 1200),
    ],
)
def test_images_seen_follow_from_the_batch(
    data: str, trainer: str, images: int, tmp_path: Path
) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"data: {{dataset: digits, image_size: 16, {data}}}\ntrainer: {{{trainer}}}\n"
        "model: {name: vit_ti16}\n"
    )
    [training], _ = recipe_trainings(CostOptions(recipe=str(recipe)))
    assert training.images == images
