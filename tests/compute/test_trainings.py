"""Trainings of recipes and of the paper, with a known cost."""

import pytest

from vit.compute.trainings import UNNAMED, Length, recipe_trainings
from vit.errors import UserError
from vit.models.zoo import model_config
from vit.recipes import list_recipes


@pytest.mark.parametrize("name", list_recipes())
def test_every_shipped_recipe_is_counted_or_reports_what_is_missing(name: str) -> None:
    try:
        [training], _ = recipe_trainings(name, [], None, None, Length())
    except UserError as error:
        assert str(error).startswith(f"recipe {name!r}")
        [training], _ = recipe_trainings(name, ["vit_s16"], None, None, Length(images=1e6))
    assert training.flops > 0


def test_a_recipe_without_a_name_trains_what_vit_fit_trains() -> None:
    from vit.training.classifier import ImageClassifier

    assert ImageClassifier().model.config == model_config(UNNAMED)
