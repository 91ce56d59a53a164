from typing import Any

import pytest

from vit.training.callbacks.hyperrule import BiTHyperRule, hyperrule
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("images", "case"),
    [
        (1, "small"),
        (19_999, "small"),
        (20_000, "medium"),
        (499_999, "medium"),
        (500_000, "large"),
        (14_000_000, "large"),
    ],
)
def test_the_number_of_images_decides(images: int, case: str) -> None:
    assert hyperrule(images) == case


@pytest.mark.parametrize("case", ["small", "medium", "large"])
def test_a_recipe_for_other_sizes_is_noted(
    case: Any, make_data, make_model, make_trainer, capsys: pytest.CaptureFixture
) -> None:
    model = make_model(schedule=Schedule(decay="constant"))
    trainer = make_trainer(max_steps=1, limit_val_batches=0, callbacks=[BiTHyperRule(case)])
    trainer.fit(model, make_data())
    noted = "BiT-HyperRule has the recipe transfer/bit_small for 44 training images"
    assert (noted in capsys.readouterr().err) == (case != "small")
