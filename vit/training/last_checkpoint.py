"""last.ckpt: where an interrupted run continues."""

import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint


class LastCheckpoint(Checkpoint):
    """Saves `last.ckpt` when the run ends, at ends of epochs, and now and then in long epochs.

    Lightning's ModelCheckpoint saves at a fixed count of epochs or steps: on thirty photos that is a
    file of the model's size every second, on ImageNet one an hour. Here the clock decides, but only
    between steps of the optimizer, so that nothing accumulated is lost.

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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
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

    def _waited(self, trainer: Trainer, seconds: float) -> bool:
        """Whether that much time has passed, by the first process's clock."""
        return trainer.strategy.broadcast(time.monotonic() - self._saved_at >= seconds)

    def _save(self, trainer: Trainer) -> None:
        if trainer.fast_dev_run or trainer.global_step == self._saved_step:
            return
        trainer.save_checkpoint(self.path)
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step
