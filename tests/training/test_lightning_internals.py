"""Lightning's private parts are what vit/training/lightning_internals.py takes them for."""

import os
import signal
import subprocess
import threading
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.killing import in_child
from vit.training.lightning_internals import ignore_signals, place_loops, take_children

pytestmark = pytest.mark.filterwarnings("ignore")


class Handlers(Callback):
    """The handler of SIGTERM during a fit."""

    handler: Any = None

    def on_train_start(self, *_: Any) -> None:
        self.handler = signal.getsignal(signal.SIGTERM)


class Ignore(Callback):
    def setup(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        ignore_signals(trainer)


def test_lightning_handles_sigterm_unless_signals_are_ignored(
    make_data, make_model, make_trainer
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    for ignored, callbacks in ((False, []), (True, [Ignore()])):
        seen = Handlers()
        make_trainer(max_steps=1, callbacks=[*callbacks, seen]).fit(make_model(), make_data())
        assert (seen.handler == before) == ignored
    assert signal.getsignal(signal.SIGTERM) == before


def test_lightning_broadcasts_before_every_batch_unless_signals_are_ignored(
    make_trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broadcasts: list[Any] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src: broadcasts.append(tensor))
    monkeypatch.setattr(Trainer, "world_size", 2)
    for ignored in (False, True):
        trainer = make_trainer(max_steps=1)
        if ignored:
            ignore_signals(trainer)
        with pytest.raises(StopIteration):  # after the broadcast, as there is no batch
            trainer.fit_loop.epoch_loop.advance(iter(()))
        assert len(broadcasts) == 1


def launch_a_child_that_fails() -> None:
    start, sleep = subprocess.Popen, time.sleep
    subprocess.Popen = lambda *_, **__: start(["false"])  # pyright: ignore
    time.sleep = lambda _: sleep(0.1)  # of the observer, which looks every 5 s
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", logger=False)

    def work() -> None:
        assert [child.wait() for child in take_children(trainer)] == [1]
        for thread in threading.enumerate():
            if thread.name == "child-process-observer":
                thread.join()
        os._exit(7)

    launcher: Any = trainer.strategy.launcher
    launcher.launch(work)


def test_a_child_that_was_taken_and_fails_leaves_its_parent_alive() -> None:
    assert in_child(launch_a_child_that_fails) == 7


def names(state: Any) -> Any:
    """The keys of nested mappings."""
    return {key: names(v) for key, v in state.items()} if isinstance(state, dict) else None


@pytest.mark.parametrize(
    ("batches", "due", "epochs", "batch"),
    [(3, False, 0, 3), (5, False, 1, 0), (5, True, 0, 5), (7, False, 1, 2)],
)
def test_the_loops_state_has_the_names_that_are_written(
    batches: int, due: bool, epochs: int, batch: int,
    make_data, make_model, make_trainer, tmp_path: Path,
) -> None:  # fmt: skip
    """44 images in batches of 8 are 5 batches per epoch."""
    keep = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1)
    trainer = make_trainer(max_epochs=2, callbacks=[keep])
    trainer.fit(make_model(), make_data())
    saved = torch.load(tmp_path / f"step={batches}.ckpt", weights_only=True)
    written = saved["loops"]["fit_loop"]
    expected = names(deepcopy(written))
    steps = written["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    assert steps["total"]["completed"] == saved["global_step"] == batches
    again = place_loops(trainer, written, batches=batches, batches_per_epoch=5, validation_due=due)
    assert again == due
    assert names(written) == expected
    loop = make_trainer(max_epochs=2).fit_loop
    loop.load_state_dict(written)
    assert loop.epoch_progress.current.completed == epochs
    assert loop.epoch_loop.batch_progress.current.ready == batch
    assert loop.epoch_loop.batch_progress.total.ready == batches
    assert loop.epoch_loop.val_loop.batch_progress.total.ready == int(due)
    assert loop.epoch_loop._batches_that_stepped == batches - (due or batch > 0)
