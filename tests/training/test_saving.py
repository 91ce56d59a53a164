import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader

from tests.killing import killed_at
from vit.checkpoints import sealed
from vit.checkpoints.sealed import verify
from vit.training.callbacks import EMA, StopTogether
from vit.training.saving import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from vit.training.schedules import Schedule
from vit.writing import remove_orphans

pytestmark = pytest.mark.filterwarnings("ignore")


class Saves(Callback):
    """Positions at which a checkpoint was written."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def on_save_checkpoint(self, trainer: Any, *_: Any) -> None:
        self.positions.append(trainer.datamodule.consumed_samples)


@pytest.mark.parametrize(
    ("seconds", "positions"),
    [
        ({}, [120]),
        ({"epoch_seconds": 0}, [40, 80, 120]),
        ({"step_seconds": 0}, [16, 32, 56, 72, 96, 112, 120]),
    ],
)
def test_the_clock_decides_but_the_end_is_always_saved(
    seconds: Any, positions: list[int], make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    keep, saves = LastCheckpoint(tmp_path, **seconds), Saves()
    keep.CHECK_EVERY = 2
    make_trainer(max_epochs=3, callbacks=[keep, saves]).fit(make_model(), make_data())
    assert saves.positions == positions
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 15


def test_saves_fall_on_steps_of_the_optimizer(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    keep, saves = LastCheckpoint(tmp_path, step_seconds=0), Saves()
    keep.CHECK_EVERY = 1
    trainer = make_trainer(max_epochs=1, accumulate_grad_batches=2, callbacks=[keep, saves])
    trainer.fit(make_model(), make_data())
    assert saves.positions == [16, 32]  # 12 images, less than a step, sit out


@pytest.mark.parametrize("stop_after", [6, 8, 12])
def test_a_run_continues_from_it_bitwise(
    stop_after: int, make_data, make_model, make_trainer, losses, killed, tmp_path: Path
) -> None:
    def run(record: Any, folder: str, **options: Any) -> Any:
        keep = LastCheckpoint(tmp_path / folder, epoch_seconds=0, step_seconds=0)
        keep.CHECK_EVERY = 3
        model = make_model(architecture={"dropout": 0.1})
        trainer = make_trainer(max_epochs=3, callbacks=[EMA(0.9), record, keep])
        trainer.fit(model, make_data(), **options)
        return model

    whole, rest = losses(), losses()
    expected = run(whole, "whole")
    with pytest.raises(killed):
        run(losses(stop_after=stop_after), "killed")
    actual = run(rest, "killed", ckpt_path=tmp_path / "killed" / "last.ckpt")
    assert rest.hex == {at: whole.hex[at] for at in rest.hex}
    assert min(rest.hex) <= 8 * (stop_after + 1) and max(rest.hex) == 112
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


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

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("scores", "best"), [([0.5, 0.9, 0.9, 0.7], 2), ([0.5, 0.5, 0.5], 2), ([0.9, 0.1], 0)]
)
def test_of_equal_scores_the_latest_is_the_best(
    scores: list[float], best: int, make_trainer, tmp_path: Path
) -> None:
    trainer = make_trainer(max_epochs=len(scores), callbacks=[BestCheckpoint(tmp_path, "val/acc1")])
    trainer.fit(Score(scores), DataLoader([0]), DataLoader([0]))
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == best
    assert [file.name for file in tmp_path.iterdir()] == ["best.ckpt"]


@pytest.mark.filterwarnings("error:.*dirpath has changed")
@pytest.mark.parametrize("copied", [True, False])
def test_a_run_that_was_moved_keeps_its_best_score(
    copied: bool, make_trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: Path, scores: list[float], **options: Any) -> BestCheckpoint:
        keep = BestCheckpoint(folder, "val/acc1")
        callbacks = [keep, LastCheckpoint(folder)]
        trainer = make_trainer(max_epochs=len(scores), callbacks=callbacks)
        trainer.fit(Score(scores), DataLoader([0]), DataLoader([0]), **options)
        return keep

    old, new = tmp_path / "old", tmp_path / "new"
    run(old, [0.9, 0.5])
    if copied:
        shutil.copytree(old, new)
        old_best = (old / "best.ckpt").read_bytes()
    else:
        old.rename(new)
    best = run(new, [0, 0, 0.6], ckpt_path=new / "last.ckpt")
    assert best.best_model_path == str(new / "best.ckpt")
    assert torch.load(new / "best.ckpt", weights_only=True)["epoch"] == 0
    if copied:
        assert (old / "best.ckpt").read_bytes() == old_best
    (new / "best.ckpt").unlink()
    capsys.readouterr()
    best = run(new, [0, 0, 0, 0.4], ckpt_path=new / "last.ckpt")
    assert "best.ckpt is not there; the best score starts over" in capsys.readouterr().err
    assert torch.load(best.best_model_path, weights_only=True)["epoch"] == 3
    (new / "best.ckpt").write_bytes((new / "best.ckpt").read_bytes()[:-1])
    best = run(new, [0, 0, 0, 0, 0.3], ckpt_path=new / "last.ckpt")
    assert "best.ckpt is damaged; the best score starts over" in capsys.readouterr().err
    assert torch.load(best.best_model_path, weights_only=True)["epoch"] == 4


def test_the_best_loss_is_the_lowest(make_trainer, tmp_path: Path) -> None:
    keep = BestCheckpoint(tmp_path, "val/loss")
    model = Score([0.9, 0.2, 0.2, 0.5], "val/loss")
    make_trainer(max_epochs=4, callbacks=[keep]).fit(model, DataLoader([0]), DataLoader([0]))
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["epoch"] == 2


class Signal(Callback):
    """What a person's Ctrl-C, or a scheduler's SIGTERM, does in the middle of a step."""

    def __init__(self, number: signal.Signals, step: int) -> None:
        self.number, self.step = number, step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("batch_size", "step"), [(8, 2), (8, 4), (8, 7), (44, 1)])
def test_a_stopped_run_has_saved_its_last_step(
    number: signal.Signals, batch_size: int, step: int,
    make_data, make_model, make_trainer, losses, tmp_path: Path,
) -> None:  # fmt: skip
    def run(folder: str, *more: Any, **options: Any) -> Any:
        model = make_model(architecture={"dropout": 0.1})
        callbacks = [*more, LastCheckpoint(tmp_path / folder)]
        make_trainer(max_epochs=3, callbacks=callbacks).fit(
            model, make_data(batch_size=batch_size), **options
        )
        return model

    expected = run("whole")
    with pytest.raises(SystemExit):
        run("stopped", Signal(number, step))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    last = tmp_path / "stopped" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == step + 1
    actual = run("stopped", ckpt_path=last)
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


@pytest.mark.parametrize("first", ["StopTogether", "LastCheckpoint"])
def test_a_stop_that_another_callback_raises_is_saved_too(
    first: str, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    other = StopTogether() if first == "StopTogether" else LastCheckpoint(tmp_path / "other")
    callbacks = [Signal(signal.SIGTERM, 3), other, LastCheckpoint(tmp_path)]
    trainer = make_trainer(max_epochs=1, callbacks=callbacks)
    with pytest.raises(SystemExit):
        trainer.fit(make_model(), make_data(batch_size=8))
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["global_step"] == 4
    assert saved["callbacks"]["LastCheckpoint"] == {"global_batch": 8}


class Validations(Callback):
    """Steps and losses of validations; SIGTERM in the one at `stop`."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.losses: list[tuple[int, float]] = []

    def on_validation_batch_start(self, trainer: Any, model: Any, batch: Any, i: int, *_) -> None:
        if trainer.global_step == self.stop and i == 1:
            signal.raise_signal(signal.SIGTERM)

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.losses.append((trainer.global_step, trainer.callback_metrics["val/loss"].item()))


@pytest.mark.parametrize(("interval", "stop"), [(1.0, 11), (1.0, 33), (4, 4), (4, 19), (4, 30)])
def test_a_validation_that_was_stopped_is_repeated(
    interval: float, stop: int, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    def run(folder: str, stop: int | None = None, **options: Any) -> Any:
        seen, model = Validations(stop), make_model(architecture={"dropout": 0.1})
        keep = [BestCheckpoint(tmp_path / folder, "val/acc1"), LastCheckpoint(tmp_path / folder)]
        callbacks = [EMA(0.9), seen, *keep]
        trainer = make_trainer(max_epochs=3, val_check_interval=interval, callbacks=callbacks)
        try:
            trainer.fit(model, make_data(batch_size=4), **options)
        except SystemExit:
            assert stop is not None
        return seen.losses, model.state_dict()

    whole, expected = run("whole")
    before, _ = run("stopped", stop)
    after, actual = run("stopped", ckpt_path=tmp_path / "stopped" / "last.ckpt")
    assert before + after == whole
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name
    bests = [
        torch.load(tmp_path / f / "best.ckpt", weights_only=True) for f in ("whole", "stopped")
    ]
    assert bests[0]["global_step"] == bests[1]["global_step"]


class Killed(Validations):
    """Dies in the validation at `stop`, or in the step after it."""

    def __init__(self, stop: int | None = None, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.after = stop, after

    def on_validation_batch_start(self, trainer: Any, model: Any, batch: Any, i: int, *_) -> None:
        if trainer.global_step == self.at and not self.after:
            raise KeyError("killed")

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.at and self.after:
            raise KeyError("killed")


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("stop", [4, 19])
def test_a_validation_on_the_step_of_a_save_is_not_lost(
    stop: int, after: bool, accumulate: int, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    def run(folder: str, seen: Killed, **options: Any) -> Any:
        model = make_model(architecture={"dropout": 0.1})
        last = LastCheckpoint(tmp_path / folder, step_seconds=0, epoch_seconds=0)
        last.CHECK_EVERY = 4
        trainer = make_trainer(
            max_epochs=3,
            val_check_interval=4 * accumulate,
            accumulate_grad_batches=accumulate,
            callbacks=[EMA(0.9), seen, BestCheckpoint(tmp_path / folder, "val/acc1"), last],
        )
        trainer.fit(model, make_data(batch_size=4 // accumulate), **options)
        return seen.losses, model.state_dict()

    whole, expected = run("whole", Killed())
    with pytest.raises(KeyError, match="killed"):
        run("killed", Killed(stop, after=after))
    last = tmp_path / "killed" / "last.ckpt"
    position = torch.load(last, weights_only=True)["global_step"]
    rest, actual = run("killed", Killed(), ckpt_path=last)
    assert rest == [entry for entry in whole if entry[0] >= position]
    for name, value in expected.items():
        assert torch.equal(value, actual[name]), name
    best = [torch.load(tmp_path / f / "best.ckpt", weights_only=True) for f in ("whole", "killed")]
    assert best[0]["global_step"] == best[1]["global_step"]


@pytest.mark.timeout(120)  # epochs without a step have no end
@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("by_steps", [False, True])
def test_an_epoch_without_a_validation_keeps_its_length_in_a_resume(
    by_steps: bool, epochs: int, make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    def run(max_epochs: int, **options: Any) -> Any:
        seen, keep = Validations(), LastCheckpoint(tmp_path, epoch_seconds=0)
        limit: Any = {"max_epochs": max_epochs}
        if by_steps:  # of which an epoch has five
            limit = {"max_epochs": -1, "max_steps": 5 * max_epochs}
        trainer = make_trainer(**limit, check_val_every_n_epoch=2, callbacks=[seen, keep])
        trainer.fit(make_model(schedule=Schedule(decay="constant")), make_data(), **options)
        return seen.losses, trainer.global_step

    whole, steps = run(4)
    before, _ = run(epochs)
    after, resumed_steps = run(4, ckpt_path=tmp_path / "last.ckpt")
    assert before + after == whole and resumed_steps == steps == 20


class LateSignalCheckpoint(LastCheckpoint):
    """SIGTERM where no hook looks for it any more, but Lightning does."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        signal.raise_signal(signal.SIGTERM)


def test_a_sigterm_at_the_end_of_an_epoch_loses_no_step(
    make_data, make_model, make_trainer, tmp_path: Path
) -> None:
    def run(folder: str, kind: type[LastCheckpoint] = LastCheckpoint, **options: Any) -> Any:
        model, data = make_model(architecture={"dropout": 0.1}), make_data(batch_size=8)
        trainer = make_trainer(max_epochs=3, callbacks=[kind(tmp_path / folder)])
        trainer.fit(model, data, **options)
        return model

    expected = run("whole")
    with pytest.raises(SystemExit):
        run("stopped", LateSignalCheckpoint)
    last = tmp_path / "stopped" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] > 0
    actual = run("stopped", ckpt_path=last)
    for name, value in expected.state_dict().items():
        assert torch.equal(value, actual.state_dict()[name]), name


def test_a_second_interrupt_does_not_wait(make_data, make_model, make_trainer, tmp_path) -> None:
    twice = [Signal(signal.SIGINT, 3), Signal(signal.SIGINT, 3)]
    trainer = make_trainer(max_epochs=1, callbacks=[*twice, LastCheckpoint(tmp_path)])
    with pytest.raises(SystemExit):
        trainer.fit(make_model(), make_data())
    assert trainer.global_step == 3
    assert not (tmp_path / "last.ckpt").exists()


# AtomicCheckpointIO

OLD, NEW = {"weights": torch.zeros(3)}, {"weights": torch.ones(3)}


def value(path: Path) -> float:
    return torch.load(path, weights_only=True)["weights"][0].item()


def test_it_replaces_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    AtomicCheckpointIO().save_checkpoint(NEW, str(path))
    assert value(path) == 1 and value(path.with_name("previous.ckpt")) == 0
    assert sorted(p.name for p in path.parent.iterdir()) == ["last.ckpt", "previous.ckpt"]
    other = tmp_path / "best.ckpt"  # of these, one is kept
    AtomicCheckpointIO().save_checkpoint(OLD, other)
    AtomicCheckpointIO().save_checkpoint(NEW, other)
    assert not other.with_name("previous.ckpt").exists()


def test_a_damaged_checkpoint_does_not_replace_the_one_before(tmp_path: Path) -> None:
    last, previous = tmp_path / "last.ckpt", tmp_path / "previous.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, previous)
    AtomicCheckpointIO().save_checkpoint(NEW, last)
    last.write_bytes(last.read_bytes()[:-1])
    writer = AtomicCheckpointIO()
    writer.save_checkpoint(NEW, last)
    assert value(last) == 1 and value(previous) == 0
    writer.save_checkpoint(OLD, last)
    assert value(last) == 0 and value(previous) == 1


def save_and_die(path: Path, place: str, count: int) -> None:
    """Saves twice, and is killed in the third save, before the call number `count` of `place`."""
    writer = AtomicCheckpointIO()
    for old in range(2):
        writer.save_checkpoint({"weights": torch.full((9,), float(old))}, path)
    module = {"save": torch, "_digest": sealed, "fsync": os, "replace": os}[place]
    killed_at(module, place, count)
    writer.save_checkpoint({"weights": torch.full((9,), 2.0)}, path)


@pytest.mark.parametrize(
    ("place", "count", "newest", "values"),
    [
        ("save", 1, "last.ckpt", {"last.ckpt": 1, "previous.ckpt": 0}),
        ("_digest", 1, "last.ckpt", {"last.ckpt": 1, "previous.ckpt": 0}),
        ("fsync", 1, "last.ckpt", {"last.ckpt": 1, "previous.ckpt": 0}),
        ("replace", 1, "last.ckpt", {"last.ckpt": 1, "previous.ckpt": 0}),
        ("replace", 2, "previous.ckpt", {"previous.ckpt": 1}),
        ("fsync", 2, "last.ckpt", {"last.ckpt": 2, "previous.ckpt": 1}),
    ],
)
def test_a_kill_at_any_step_of_a_save_leaves_a_whole_checkpoint(
    place: str, count: int, newest: str, values: dict[str, int], tmp_path: Path
) -> None:
    from vit.cli.run_directory import newest_file

    folder = tmp_path / "checkpoints"
    child = multiprocessing.get_context("fork").Process(
        target=save_and_die, args=(folder / "last.ckpt", place, count)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert newest_file(tmp_path).name == newest
    found = {path.name: path for path in folder.iterdir() if not path.name.startswith(".")}
    assert {name: value(path) for name, path in found.items()} == values
    assert all(verify(path) for path in found.values())
    remove_orphans(folder)
    assert {path.name for path in folder.iterdir()} == set(values)


@pytest.mark.parametrize("fails", ["torch.save", "os.fsync", "os.replace"])
def test_a_crash_while_saving_leaves_the_old_file(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))

    def crash(*args: Any, **kwargs: Any) -> None:
        if fails == "torch.save":
            args[1].write(b"PK half of a checkpoint")
            args[1].flush()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(fails, crash)
        with pytest.raises(OSError, match="No space left"):
            AtomicCheckpointIO().save_checkpoint(NEW, path)
    assert value(path) == 0
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["last.ckpt"]
    assert not list(elsewhere.iterdir())  # nothing passes through another file system


def test_the_bytes_are_on_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    calls: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr("os.replace", lambda a, b: (calls.append("name"), replace(a, b)))
    AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert calls == ["sync", "name", "sync"]  # at last the directory, which holds the name


def test_options_of_remote_stores_are_refused_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="storage_options"):
        AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "a.ckpt", storage_options={"a": 1})


def test_remote_addresses_are_left_to_lightning(tmp_path: Path) -> None:
    AtomicCheckpointIO().save_checkpoint(NEW, f"file://{tmp_path}/a.ckpt")
    assert value(tmp_path / "a.ckpt") == 1


def test_a_full_disk_is_called_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch fails a second time while it closes the file, and that hides the reason."""

    def full(*_: Any) -> None:
        try:
            raise OSError(28, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 682240 vs 682192")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"No space left on device: .*last\.ckpt"):
        AtomicCheckpointIO().save_checkpoint(NEW, tmp_path / "last.ckpt")
    assert not list(tmp_path.iterdir())
