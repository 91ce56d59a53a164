import os
import random
import shutil
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback, Timer
from torch.utils.data import DataLoader

from tests.command import logged
from tests.killing import in_child, killed_at
from vit.extensions.recipes.ema import EMA
from vit.training.callbacks.stopping import StopTogether
from vit.training.csv_log import MetricsCsv
from vit.training.saving import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from vit.weights.archives import check_archive
from vit.writing import remove_orphans

pytestmark = pytest.mark.filterwarnings("ignore")


class Saves(Callback):
    """Positions at which a checkpoint was written."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        self.positions.append(trainer.datamodule.consumed_samples)


@pytest.mark.parametrize(
    ("seconds", "positions"), [(None, [120]), (0, [16, 32, 40, 56, 72, 80, 96, 112, 120])]
)
def test_the_clock_decides_but_the_end_is_always_saved(
    seconds: Any, positions: list[int], make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    keep, saves = LastCheckpoint(tmp_path, seconds), Saves()
    keep.CHECK_EVERY = 2
    make_trainer(max_epochs=3, callbacks=[keep, saves]).fit(make_model(), make_data())
    assert saves.positions == positions
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 15


def test_saves_fall_on_steps_of_the_optimizer(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    keep, saves = LastCheckpoint(tmp_path, 0), Saves()
    keep.CHECK_EVERY = 1
    trainer = make_trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[keep, saves])
    trainer.fit(make_model(), make_data())
    assert saves.positions == [16, 32]  # 12 images, less than a step, sit out


class Score(LightningModule):
    """The given scores, one after each validation."""

    def __init__(self, scores: list[float], name: str = "val/acc1") -> None:
        super().__init__()
        self.scores, self.weight = scores, torch.nn.Parameter(torch.zeros(()))
        self.name = name

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weight

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log(self.name, self.scores[self.current_epoch])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        score = float(self.trainer.callback_metrics[self.name])
        checkpoint["vit"] = {"metrics": {self.name: score}}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("name", "scores", "best"),
    [
        ("val/acc1", [0.5, 0.9, 0.9, 0.7], 2),
        ("val/acc1", [0.9, 0.1], 0),
        ("val/loss", [0.9, 0.2, 0.2, 0.5], 2),
    ],
)
def test_of_equal_scores_the_latest_is_the_best(
    name: str, scores: list[float], best: int, make_trainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_epochs=len(scores), callbacks=[BestCheckpoint(tmp_path, name)])
    trainer.fit(Score(scores, name), DataLoader([0]), DataLoader([0]))
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == best
    assert [file.name for file in tmp_path.iterdir()] == ["best.ckpt"]


def scored(make_trainer: Any, folder: Path, scores: list[float], **options: Any) -> BestCheckpoint:
    """The best checkpoint of a run with these scores, one in each epoch."""
    keep = BestCheckpoint(folder, "val/acc1")
    trainer = make_trainer(max_epochs=len(scores), callbacks=[keep, LastCheckpoint(folder)])
    trainer.fit(Score(scores), DataLoader([0]), DataLoader([0]), **options)
    return keep


@pytest.mark.filterwarnings("error:.*dirpath has changed")
@pytest.mark.parametrize("copied", [True, False])
def test_a_run_that_was_moved_keeps_its_best_score(
    copied: bool, make_trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = partial(scored, make_trainer)
    old, new = tmp_path / "old", tmp_path / "new"
    run(old, [0.9, 0.5])
    shutil.copytree(old, new)
    old_best = (old / "best.ckpt").read_bytes()
    if not copied:
        shutil.rmtree(old)
    best = run(new, [0, 0, 0.6], ckpt_path=new / "last.ckpt")
    assert best.best_model_path == str(new / "best.ckpt")
    assert torch.load(new / "best.ckpt", weights_only=True)["epoch"] == 0
    assert not copied or (old / "best.ckpt").read_bytes() == old_best
    (new / "best.ckpt").unlink()
    capsys.readouterr()
    best = run(new, [0, 0, 0, 0.4], ckpt_path=new / "last.ckpt")
    assert "best score starts over" in capsys.readouterr().err
    assert torch.load(best.best_model_path, weights_only=True)["epoch"] == 3


def test_a_best_checkpoint_of_steps_that_were_lost_is_not_the_runs(
    make_trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kill after a better validation than the last saved state knows."""

    run = partial(scored, make_trainer, tmp_path)
    run([0.5])
    before = (tmp_path / "last.ckpt").read_bytes()
    run([0.5, 0.9], ckpt_path=tmp_path / "last.ckpt")
    (tmp_path / "last.ckpt").write_bytes(before)
    capsys.readouterr()
    best = run([0.5, 0.4, 0.6], ckpt_path=tmp_path / "last.ckpt")
    assert "was saved after the checkpoint that the run goes on from" in capsys.readouterr().err
    assert float(best.best_model_score or 0) == pytest.approx(0.6)
    assert torch.load(best.best_model_path, weights_only=True)["epoch"] == 2


class Validations(Callback):
    """Steps and losses of validations."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.losses.append((trainer.global_step, trainer.callback_metrics["val/loss"].item()))


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


class Interrupt(Callback):
    """A signal, or death, in a hook at a step."""

    def __init__(self, hook: str, step: int, *, dies: bool = False) -> None:
        self.hook, self.step, self.dies = hook, step, dies

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "hook"):
            return object.__getattribute__(self, "_interrupt")
        return super().__getattribute__(name)

    def _interrupt(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.step = -1
            if self.dies:
                raise KeyError("killed")
            signal.raise_signal(SIGNALS[trainer.global_step % 3])


LIMITS: dict[str, dict[str, Any]] = {
    "epochs": {"max_epochs": 3},
    "epochs of one step": {"max_epochs": 6},
    "whole epochs of steps": {"max_epochs": -1, "max_steps": 10},
    "every second epoch": {"max_epochs": 4, "check_val_every_n_epoch": 2},
    "inside epochs": {"max_epochs": 3, "val_check_interval": 2},
    "across epochs": {
        "max_epochs": -1,
        "max_steps": 12,
        "val_check_interval": 3,
        "check_val_every_n_epoch": None,
    },
    "accumulating": {"max_epochs": 3, "accumulate_grad_batches": 2, "val_check_interval": 3},
    "part of an epoch": {"max_epochs": 4, "limit_train_batches": 3},
    "without validation": {"max_epochs": 3, "limit_val_batches": 0},
    "by the clock": {"max_epochs": 3, "max_time": {"seconds": 7}},
    "by the clock, at the end of an epoch": {"max_epochs": 3, "max_time": {"seconds": 10}},
}
# The hooks after a step, in their order, at the last step of an epoch or of the run.
HOOKS = [
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
]
MOMENTS = [(hook, step, False) for hook in HOOKS for step in (5, 10)]
MOMENTS += [("on_train_batch_end", step, False) for step in (1, 4, 13, 15)]
MOMENTS += [(hook, 9, True) for hook in HOOKS]
ALWAYS = {
    "accumulating": [("on_validation_batch_end", 4, False)],  # within a step
    "by the clock": [(hook, 7, False) for hook in HOOKS[1:]],
    "by the clock, at the end of an epoch": [("on_validation_start", 10, False)],
}


@pytest.mark.timeout(240)  # epochs without a step have no end
@pytest.mark.parametrize("limits", LIMITS)
def test_a_stop_or_a_kill_at_any_moment_changes_nothing(
    limits: str, make_data, make_model, make_trainer, tmp_path: Path, monkeypatch
) -> None:
    """Weights, steps, validations, best.ckpt and metrics.csv are those of the run left alone."""
    batch_size = {"accumulating": 4, "epochs of one step": 44}.get(limits, 8)

    def run(folder: Path, interrupt: Interrupt | None = None) -> Any:
        last, seen = folder / "last.ckpt", Validations()
        step = torch.load(last, weights_only=True)["global_step"] if last.is_file() else None
        keep = LastCheckpoint(folder, 0 if interrupt is None or interrupt.dies else None)
        keep.CHECK_EVERY = 1
        best = BestCheckpoint(folder, "val/acc1")
        others = [] if interrupt is None else [interrupt]
        trainer = make_trainer(
            **LIMITS[limits],
            logger=MetricsCsv(folder, step),
            callbacks=[EMA(0.9), seen, *others, StopTogether(), best, keep],
        )
        # A step takes a second.
        monkeypatch.setattr(
            Timer, "time_elapsed", lambda t, *_: max(t._offset, trainer.global_step)
        )
        model = make_model(architecture={"dropout": 0.1})
        with suppress(SystemExit, KeyError):
            checkpoint = None if step is None else last
            trainer.fit(model, make_data(batch_size=batch_size), ckpt_path=checkpoint)
        return seen.losses, model.state_dict(), trainer.global_step

    whole = run(tmp_path / "whole")
    sampled = random.Random(limits).sample(MOMENTS, 1 if limits in ALWAYS else 2)
    moments = dict.fromkeys([*ALWAYS.get(limits, ()), *sampled])  # each once
    for hook, step, dies in moments:
        folder = tmp_path / f"{hook} {step} {dies}"
        before = run(folder, Interrupt(hook, step, dies=dies))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        after = run(folder)
        case = (hook, step, dies)
        if not dies:
            assert before[0] + after[0] == whole[0], case
        assert after[2] == whole[2], case
        for name, value in whole[1].items():
            assert torch.equal(value, after[1][name]), (*case, name)
        assert logged(folder) == logged(tmp_path / "whole"), case
        best = [path / "best.ckpt" for path in (folder, tmp_path / "whole")]
        assert best[0].is_file() == best[1].is_file(), case
        if best[0].is_file():
            steps = [torch.load(path, weights_only=True)["global_step"] for path in best]
            assert steps[0] == steps[1], case


def test_a_second_interrupt_does_not_wait(make_data, make_model, make_trainer, tmp_path) -> None:
    twice = [Interrupt("on_before_optimizer_step", 3), Interrupt("on_before_optimizer_step", 3)]
    callbacks = [*twice, StopTogether(), LastCheckpoint(tmp_path)]
    trainer = make_trainer(max_epochs=1, callbacks=callbacks)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        trainer.fit(make_model(), make_data())
    assert trainer.global_step == 3
    assert not (tmp_path / "last.ckpt").exists()


# AtomicCheckpointIO


def value(path: Path) -> float:
    return torch.load(path, weights_only=True)["weights"][0].item()


def save_and_die(path: Path, place: str, count: int) -> None:
    """Saves, and is killed in the second save, before the call number `count` of `place`."""
    writer = AtomicCheckpointIO()
    writer.save_checkpoint({"weights": torch.full((9,), 0.0)}, path)
    killed_at({"save": torch, "fsync": os, "replace": os}[place], place, count)
    writer.save_checkpoint({"weights": torch.full((9,), 1.0)}, path)


@pytest.mark.parametrize(
    ("place", "count", "expected"),
    [("save", 1, 0), ("fsync", 1, 0), ("replace", 1, 0), ("fsync", 2, 1)],
)
def test_a_kill_at_any_step_of_a_save_leaves_a_whole_checkpoint(
    place: str, count: int, expected: float, tmp_path: Path
) -> None:
    path = tmp_path / "last.ckpt"
    assert in_child(lambda: save_and_die(path, place, count)) == -signal.SIGKILL
    check_archive(path)
    assert value(path) == expected
    remove_orphans(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]


def test_the_bytes_are_on_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr("os.replace", lambda a, b: (calls.append("name"), replace(a, b)))
    AtomicCheckpointIO().save_checkpoint({"weights": torch.ones(3)}, tmp_path / "last.ckpt")
    assert calls == ["sync", "name", "sync"]  # at last the directory, which holds the name
