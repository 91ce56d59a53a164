"""Runs within a time, by a clock that moves as the tests say."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from tests.training.test_saving import HOOKS, Interrupt, Validations
from vit.errors import UserError
from vit.extensions.recipes.budget import FIRST, Budget, next_after, seconds_of
from vit.training.callbacks.stopping import StopTogether
from vit.training.saving import BestCheckpoint, LastCheckpoint
from vit.training.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore")

NOW = [0.0]
"""Seconds of the tests' clock."""
SCHEDULE: dict[str, Any] = {"decay": "linear", "warmup_steps": 3}


class Timed(Budget):
    clock = staticmethod(lambda: NOW[0])


class Passing(Callback):
    """Moves the clock in every step by `step(number)` seconds, in every validation by `other`."""

    def __init__(self, step: Callable[[int], float], other: float) -> None:
        self.step, self.other = step, other
        self.rates: dict[int, float] = {}

    def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        self.rates[trainer.global_step] = trainer.optimizers[0].param_groups[0]["lr"]
        NOW[0] += self.step(trainer.global_step) / trainer.accumulate_grad_batches

    def on_validation_batch_start(self, *_: Any, **__: Any) -> None:
        NOW[0] += self.other / 2  # of two batches


@pytest.fixture
def run(make_data, make_model, make_trainer, tmp_path: Path) -> Callable[..., Any]:
    """Trains within `time`; resumes tmp_path/NAME. The Trainer, the module, and what was seen."""

    def fit(
        time: str = "60s",
        name: str = "run",
        *,
        settled: Any = None,
        interrupt: Callback | None = None,
        step: Callable[[int], float] = lambda _: 1.0,
        validation: float = 2.0,
        **options: Any,
    ) -> Any:
        last = tmp_path / name / "last.ckpt"
        budget = Timed(time, settled=settled)
        schedule = Schedule(**SCHEDULE, length=budget)
        model = make_model(architecture={"dropout": 0.1}, schedule=schedule)
        passing, seen = Passing(step, validation), Validations()
        folder = tmp_path / name
        callbacks = [passing, seen, *([] if interrupt is None else [interrupt]), StopTogether()]
        callbacks += [BestCheckpoint(folder, "val/loss"), LastCheckpoint(folder, 0)]
        trainer = make_trainer(**{"max_epochs": -1, "callbacks": callbacks, **options})
        with suppress(SystemExit, KeyError):
            checkpoint = last if last.is_file() else None
            trainer.fit(model, make_data(), ckpt_path=checkpoint)
        return trainer, model, budget, passing.rates, seen.losses

    NOW[0] = 0.0
    return fit


def irregular(seed: int) -> Callable[[int], float]:
    draw = random.Random(seed)
    return lambda _: draw.uniform(0.5, 1.5)


MOMENTS = [(hook, step, False) for hook in HOOKS for step in (5, 20)]
MOMENTS += [("on_train_batch_end", step, False) for step in (13, 21, 33)]
MOMENTS += [(hook, 35, True) for hook in HOOKS[:3]]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("moment", random.Random(0).sample(MOMENTS, 6), ids=str)
def test_a_resumed_run_is_to_the_bit_one_with_the_same_settlements(
    moment: tuple[str, int, bool], run, tmp_path: Path
) -> None:
    hook, step, dies = moment
    stopped = run(step=irregular(1), interrupt=Interrupt(hook, step, dies=dies))
    assert stopped[0].global_step <= step + 1
    trainer, model, budget, _, losses = run(step=irregular(2))
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["callbacks"]["Timed"]
    assert [tuple(pair) for pair in state["settled"]] == budget.settled and budget.settled
    replayed = run(name="replay", settled=state["settled"], step=lambda _: 99.0)
    assert replayed[2].settled == budget.settled
    assert replayed[0].global_step == trainer.global_step == budget.settled[-1][1]
    seen = losses if dies else stopped[4] + losses
    assert replayed[4][-len(seen) :] == seen
    for name, value in model.state_dict().items():
        assert torch.equal(value, replayed[1].state_dict()[name]), name


def test_the_rate_follows_the_steps_that_were_last_settled(run) -> None:
    _, _, budget, rates, _ = run(step=irregular(3))
    assert len(budget.settled) > 2 and budget.settled[0][0] == FIRST
    for step, rate in rates.items():
        total = next((total for at, total in reversed(budget.settled) if at < step), None)
        assert rate == 1e-3 * Schedule(**SCHEDULE).factor(step, total)
    before = [rate for step, rate in rates.items() if 3 <= step <= FIRST]
    assert before == [1e-3] * (FIRST - 2)  # after the warm-up, of a length that is not known


def test_settled_again_at_each_quarter_and_at_seven_eighths() -> None:
    steps, step = [], 20
    while (again := next_after(step, 1000)) is not None:
        steps.append(step := again)
    assert steps == [250, 500, 750, 875]
    assert next_after(250, 1010) == 505  # not at 253, which has just been settled
    assert next_after(250, 2000) == 500
    assert next_after(900, 1000) is None


@pytest.mark.parametrize(
    ("seconds", "validation", "options"),
    [
        (5.0, 2.0, {}),
        (3.0, 20.0, {}),
        (6.0, 30.0, {"check_val_every_n_epoch": 2}),
        (7.0, 5.0, {"accumulate_grad_batches": 2}),
        (5.0, 9.0, {"check_val_every_n_epoch": None, "val_check_interval": 12}),
        (6.0, 4.0, {"limit_val_batches": 0}),
    ],
)
def test_steps_and_validations_fill_the_time(
    seconds: float, validation: float, options: Any, run
) -> None:
    trainer, _, budget, _, losses = run(
        "10m", step=lambda _: seconds, validation=validation, **options
    )
    rest = budget._after_the_last_step(trainer) - (validation if losses else 0)
    assert 0.95 * 600 <= NOW[0] + rest <= 600
    if losses:
        assert losses[-1][0] == trainer.global_step  # the last weights are scored


def test_compilation_is_not_taken_for_the_time_of_a_step(run) -> None:
    _, _, budget, _, _ = run("10m", step=lambda step: 60.0 if step < 2 else 4.0, validation=3.0)
    total = dict(budget.settled)[FIRST]
    assert total == pytest.approx((600 - 120) / (4 + 3 / 5), rel=0.05)


def test_a_slow_first_batch_does_not_end_the_run(run) -> None:
    slow = {0: 90.0}  # for which 9 images of val would seem to need 101 seconds
    trainer, _, budget, _, _ = run("200s", step=lambda step: slow.get(step, 1.0), validation=1.0)
    assert budget.settled[0][0] == FIRST and trainer.global_step > 60


def test_training_ends_where_the_rest_needs_the_time(run, capsys) -> None:
    trainer, _, budget, _, losses = run("100s", step=lambda step: 1.0 if step < 60 else 9.0)
    before, after = budget.settled[-2][1], budget.settled[-1]
    assert after == (trainer.global_step, trainer.global_step) and after[0] < before
    text = f"training ends after {after[0]} steps of {before}, at {after[0] / before:.0%} of the"
    assert text in capsys.readouterr().err
    assert losses[-1][0] == trainer.global_step
    assert budget.used() <= 105


def test_the_time_of_all_parts_counts(run, tmp_path: Path) -> None:
    run(interrupt=Interrupt("on_train_batch_end", 30))
    used = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["callbacks"]["Timed"]
    assert used["used"] == NOW[0] > 30
    NOW[0] += 1000  # between the parts
    _, _, budget, _, _ = run()
    assert 0.8 * 60 < budget.used() <= 60


def test_more_time_trains_on(run) -> None:
    first = run("40s")
    longer = run("80s")
    at, total = longer[2].settled[len(first[2].settled)]
    assert at == first[0].global_step and total > at
    assert longer[0].global_step == longer[2].settled[-1][1] > 1.5 * at
    assert 0.8 * 80 < longer[2].used() <= 80


def test_a_limit_of_steps_stays_a_limit(run) -> None:
    trainer, _, budget, _, _ = run("10h", max_steps=26)
    assert trainer.global_step == 26 and {total for _, total in budget.settled} == {26}
    assert run("10h", name="short", max_steps=7)[0].global_step == 7


def test_a_time_that_start_up_uses_is_refused(run) -> None:
    with pytest.raises(UserError, match="--budget 0:02 is too short: start-up took 0:00"):
        run("2s")


def test_a_time_that_ends_before_the_length_is_known_is_said(run, capsys) -> None:
    trainer, _, budget, _, _ = run("30s", step=lambda _: 4.0)
    assert budget.settled == [(trainer.global_step, trainer.global_step)]
    text = f"training ends after {trainer.global_step} steps (too few to settle a length)"
    assert text in capsys.readouterr().err


def test_times_are_read(run) -> None:
    texts = {"90s": 90, "20m": 1200, "2h": 7200, "1h30m": 5400, "1h0m5s": 3605}
    assert {text: seconds_of(text) for text in texts} == texts
    for wrong in ("", "20", "0s", "1.5h", "20 m", "m", "-3m", "30m1h"):
        with pytest.raises(UserError, match="is not a time; type 90s, 20m"):
            seconds_of(wrong)
