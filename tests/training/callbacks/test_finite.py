"""Steps that are not finite end the run and are named."""

from math import inf, nan
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from vit.errors import UserError
from vit.training.callbacks.finite import _all_finite

pytestmark = pytest.mark.filterwarnings("ignore")


class Overflow(Callback):
    """Gradients of some steps, from 0, are infinite."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_before_optimizer_step(self, trainer: Any, model: Any, optimizer: Any) -> None:
        if trainer.global_step in self.steps:
            list(model.parameters())[3].grad[0] = float("inf")


@pytest.mark.parametrize(
    ("value", "finite"),
    [(1.0, True), (3e38, True), (-3e38, True), (inf, False), (-inf, False), (nan, False)],
)
def test_numbers_whose_squares_overflow_are_finite(value: float, finite: bool) -> None:
    tensors = [torch.randn(3, 5), torch.full((2,), value), torch.zeros(1)]
    assert bool(_all_finite(tensors)) is finite


def test_the_step_is_named(make_data, make_model, make_trainer) -> None:
    trainer = make_trainer(max_epochs=2, log_every_n_steps=5, callbacks=[Overflow(3, 4)])
    with pytest.raises(UserError, match="gradients are not finite since step 4"):
        trainer.fit(make_model(), make_data())
