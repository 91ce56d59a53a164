"""best.ckpt, which a finished run is, and last.ckpt, where an interrupted run continues."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor


class BestCheckpoint(ModelCheckpoint):
    """Keeps `best.ckpt`: the best validation score, and of equal ones the latest.

    Lightning keeps the first of equals. On a small validation set scores are often equal, and
    weights from further down the learning-rate schedule are the better bet.

    Args:
        directory: Where the file goes.
        monitor: Name of a metric: a loss, which is better when lower, or one that is better when
            higher, such as val/acc1.
    """

    def __init__(self, directory: str | Path, monitor: str) -> None:
        super().__init__(
            directory,
            filename="best",
            monitor=monitor,
            mode="min" if monitor.endswith("loss") else "max",
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        equal = current is not None and self.best_model_score == current
        return bool(equal) or super().check_monitor_top_k(trainer, current)


class LastCheckpoint(Checkpoint):
    """Saves `last.ckpt` when the run ends, at ends of epochs, and now and then in long epochs.

    Lightning's ModelCheckpoint saves at a fixed count of epochs or steps: on thirty photos that is
    a file of the model's size every second, on ImageNet one an hour. Here the clock decides, but
    only between steps of the optimizer, so that nothing accumulated is lost.

    Ctrl-C and SIGTERM, too, let a run of one process finish its step and save; a second Ctrl-C does
    not wait. Several processes would each stop at another step: they stop at once.

    Args:
        directory: Where the file goes.
        epoch_seconds: Time between two saves at ends of epochs.
        step_seconds: Time after which an epoch is interrupted for a save.
    """

    CHECK_EVERY = 50  # steps: all processes must agree on the clock, which takes a broadcast

    def __init__(
        self, directory: str | Path, *, epoch_seconds: float = 60, step_seconds: float = 900
    ) -> None:
        self.path = Path(directory) / "last.ckpt"
        self.epoch_seconds = epoch_seconds
        self.step_seconds = step_seconds
        self._saved_at = 0.0
        self._saved_step = -1
        self._interrupted = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()
        self._interrupted = False
        alone = trainer.world_size == 1 and threading.current_thread() is threading.main_thread()
        if alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *signal_and_frame: Any) -> None:
        self._interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Not by print, whose buffer the signal may have come in the middle of.
        os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")

    def _stop_if_asked(self, trainer: Trainer) -> None:
        if self._interrupted or (trainer.received_sigterm and trainer.world_size == 1):
            self._save(trainer)
        if self._interrupted:
            raise KeyboardInterrupt

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Lightning looks for the signal in more places than have a hook, all between two steps.
        if isinstance(exception, SIGTERMException) and trainer.world_size == 1:
            self._save(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.is_last_batch or (batch_idx + 1) % trainer.accumulate_grad_batches == 0:
            self._stop_if_asked(trainer)
        due = (batch_idx + 1) % (self.CHECK_EVERY * trainer.accumulate_grad_batches) == 0
        if due and not trainer.is_last_batch and self._waited(trainer, self.step_seconds):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs, steps = trainer.max_epochs, trainer.max_steps
        ends = (
            trainer.should_stop
            or (epochs is not None and 0 < epochs <= trainer.current_epoch + 1)
            or 0 < steps <= trainer.global_step
        )
        if ends or self._waited(trainer, self.epoch_seconds):
            self._save(trainer)
        self._stop_if_asked(trainer)  # of a signal during the validation

    def _waited(self, trainer: Trainer, seconds: float) -> bool:
        """Whether that much time has passed, by the first process's clock."""
        return trainer.strategy.broadcast(time.monotonic() - self._saved_at >= seconds)

    def _save(self, trainer: Trainer) -> None:
        debugging: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        if debugging or trainer.global_step == self._saved_step:
            return
        trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and position too
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step
