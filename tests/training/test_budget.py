from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from vit.errors import UserError
from vit.training.budget import step_budget
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_epochs": 3}, 15),
        # Five batches per epoch, of which four are whole steps.
        ({"max_epochs": 3, "accumulate_grad_batches": 2}, 6),
        ({"max_epochs": 3, "limit_train_batches": 2}, 6),
        ({"max_epochs": 3, "limit_train_batches": 0.5}, 6),
        ({"max_epochs": 3, "max_steps": 7}, 7),
        ({"max_epochs": 3, "max_steps": 70}, 15),
        ({"max_epochs": -1, "max_steps": 7}, 7),
    ],
)
def test_the_budget_is_the_number_of_steps_that_are_taken(
    options: Any, steps: int, make_data, make_model, make_trainer
) -> None:
    seen = []

    class Model(type(make_model())):
        def configure_optimizers(self) -> Any:
            seen.append(step_budget(self.trainer))
            return super().configure_optimizers()

    model = make_model()
    model.__class__ = Model
    trainer = make_trainer(limit_val_batches=0, **options)
    trainer.fit(model, make_data())
    assert seen == [steps] and trainer.global_step == steps
    assert trainer.estimated_stepping_batches == steps


@pytest.mark.parametrize("counting", [True, False])
def test_a_warmup_in_epochs_is_over_when_they_are(
    counting: bool, make_data, make_model, make_trainer
) -> None:
    rates: list[float] = []

    class Rates(Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    model = make_model(schedule=Schedule(decay="constant", warmup_epochs=2, warmup_start=0.0))
    samples = [(torch.zeros(3, 8, 8), 0)] * 40
    data = make_data() if counting else torch.utils.data.DataLoader(samples, batch_size=8)
    options = {"accumulate_grad_batches": 2, "limit_val_batches": 0, "callbacks": [Rates()]}
    make_trainer(max_epochs=4, **options).fit(model, data)
    # Five batches per epoch are three steps, so the warm-up six: 0, 1/6, 2/6, ... Of our data an
    # epoch has whole steps alone, two of them.
    batches, steps = (4, 4) if counting else (5, 6)
    assert rates[::batches] == pytest.approx([0, 0.5e-3, 1e-3, 1e-3])
    assert rates[3] == pytest.approx(1e-3 / steps)


def test_a_time_limit_alone_gives_the_decay_no_length(make_data, make_model, make_trainer) -> None:
    trainer = make_trainer(max_epochs=-1, max_time={"hours": 1})
    with pytest.raises(UserError, match=r"--trainer\.max_time alone needs --budget"):
        trainer.fit(make_model(schedule=Schedule(decay="linear")), make_data())
