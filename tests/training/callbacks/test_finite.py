"""Steps that are not finite are named with their images, or skipped and counted."""

import json
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from vit.errors import UserError
from vit.training.callbacks import EMA, FiniteLoss, LossSpikes
from vit.training.callbacks.finite import _all_finite
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")


class Overflow(Callback):
    """Gradients of some steps, from 0, are infinite."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.seen = steps, {}

    def on_train_batch_start(self, trainer: Any, model: Any, batch: Any, batch_idx: int) -> None:
        self.seen[trainer.global_step] = sorted(batch[2].tolist())

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


def test_the_images_of_the_step_are_listed(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    overflow, data = Overflow(3, 4), make_data()
    trainer = make_trainer(max_epochs=2, log_every_n_steps=5, callbacks=[overflow])
    with pytest.raises(
        UserError, match=r"gradients are not finite since step 4: .*nonfinite\.json"
    ):
        trainer.fit(make_model(), data)
    found = json.loads((tmp_path / "nonfinite.json").read_text())
    assert (found["step"], found["what"]) == (4, "the gradients are not finite")
    assert sorted(found["images"]) == sorted(data.training_names(overflow.seen[3]))
    assert all(Path(name).name.endswith(".png") for name in found["images"])


OPTIMIZERS = {
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "plain": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=False),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_skipped_step_leaves_weights_and_optimizer_as_they_were(
    kind: str, clip: float | None, make_data, make_model, make_trainer, capsys
) -> None:
    class States(Callback):
        def __init__(self) -> None:
            self.states: list[list[torch.Tensor]] = []

        def on_train_batch_end(self, trainer: Any, model: Any, *_: Any) -> None:
            states = [model.state_dict(), *trainer.optimizers[0].state.values()]
            tensors = [v for state in states for v in state.values() if torch.is_tensor(v)]
            self.states.append([v.clone() for v in tensors])

    states = States()
    model = make_model(optimizer=OPTIMIZERS[kind], schedule=Schedule(decay="constant"))
    model.on_nonfinite = "skip"
    trainer = make_trainer(
        max_steps=7, callbacks=[Overflow(2, 5), EMA(0.9), states], gradient_clip_val=clip
    )
    trainer.fit(model, make_data())
    for step, (before, after) in enumerate(zip(states.states, states.states[1:], strict=False), 1):
        assert len(before) == len(after)
        same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert same == (step in (2, 5)), step
    err = capsys.readouterr().err
    assert "note: 1 steps skipped up to step 6, 2 in all" in err
    guard = next(c for c in trainer.callbacks if isinstance(c, FiniteLoss))
    assert guard.state_dict() == {"skipped": 2}


@pytest.mark.parametrize("kind", ["fused", "plain"])
def test_skipping_changes_nothing_where_all_is_finite(
    kind: str, make_data, make_model, make_trainer
) -> None:
    trained = []
    for mode in ("stop", "skip"):
        model = make_model(optimizer=OPTIMIZERS[kind])
        model.on_nonfinite = mode
        make_trainer(max_epochs=2).fit(model, make_data())
        trained.append(model.state_dict())
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name


def test_too_many_in_a_row_end_the_run(make_data, make_model, make_trainer) -> None:
    model = make_model()
    model.on_nonfinite = "skip"
    trainer = make_trainer(max_epochs=9, callbacks=[Overflow(*range(4, 99))])
    with pytest.raises(UserError, match="not finite in 10 steps in a row, up to step 14"):
        trainer.fit(model, make_data())
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_spike_is_noted(make_data, make_model, make_trainer, capsys) -> None:
    model = make_model()
    normal = model.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        return normal(batch, batch_idx) * (50 if model.trainer.global_step == 30 else 1)

    model.training_step = training_step
    make_trainer(max_steps=40, max_epochs=-1).fit(model, make_data())
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: the")]
    assert len(notes) == 1 and notes[0].startswith("note: the loss at step 31 is ")


def test_usual_losses_are_no_spike() -> None:
    spikes = LossSpikes()
    draws = torch.randn(50, generator=torch.Generator().manual_seed(0))
    spikes._losses.extend((2 + 0.1 * draws).tolist())
    usual = spikes.usual()
    assert usual is not None
    assert usual[0] == pytest.approx(2, abs=0.05) and usual[1] == pytest.approx(2.8, abs=0.25)
