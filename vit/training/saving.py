"""Writes best.ckpt (the result) and last.ckpt (to resume from): whole, or not at all."""

import time
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from vit.console import note
from vit.errors import UserError
from vit.signals import Stopped
from vit.training.counted_data import counting_data
from vit.weights.archives import LAST, read_checkpoint
from vit.weights.sealed import write_torch

Contents = dict[str, Any]
"""Parts of a checkpoint: weights, states of optimizers, callbacks and loops, our own facts."""


class BestCheckpoint(ModelCheckpoint):
    """Keeps `best.ckpt`: the best validation score, and of equal ones, common in small sets, the
    latest, where Lightning keeps the first.

    Args:
        directory: Folder of the run's checkpoints.
        monitor: Name of a loss, better when lower, or of a metric that is better when higher.
    """

    best_model_path: str

    def __init__(self, directory: str | Path, monitor: str) -> None:
        super().__init__(
            directory,
            filename="best",
            monitor=monitor,
            mode="min" if monitor.endswith("loss") else "max",
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )

    def load_state_dict(self, state_dict: Contents) -> None:
        """Restores the best score, also in a moved run: Lightning records absolute paths."""
        if not (best := state_dict["best_model_path"]):
            return
        assert self.dirpath is not None
        file, score = Path(self.dirpath) / Path(best).name, state_dict["best_model_score"]
        try:
            metrics: Contents = read_checkpoint(file, "meta").get("vit", {}).get("metrics", {})
            if metrics.get(f"{self.monitor}", float(score)) != float(score):
                raise UserError(f"{file} was saved after the checkpoint that the run goes on from")
        except (UserError, OSError) as error:
            note(f"{error}; the best score starts over from the next validation")
            return
        self.best_model_path = self.kth_best_model_path = str(file)
        self.best_model_score = self.kth_value = score
        self.best_k_models = {str(file): score}

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        equal = current is not None and self.best_model_score == current
        return bool(equal) or super().check_monitor_top_k(trainer, current)


class LastCheckpoint(Checkpoint):
    """Saves `last.ckpt` when the run ends or is stopped, at ends of epochs, and in long epochs.

    Lightning's ModelCheckpoint counts epochs or steps, its train_time_interval may save between
    accumulated batches, and its save_on_exception saves after one process alone has failed.

    Args:
        directory: Folder of the run's checkpoints.
        seconds: Time between two saves; by default 60 at ends of epochs, 900 within an epoch.
    """

    CHECK_EVERY = 50  # steps: all processes must agree on the clock, which takes a broadcast

    def __init__(self, directory: str | Path, seconds: float | None = None) -> None:
        super().__init__()
        self.path = Path(directory) / LAST
        self.epoch_seconds = 60.0 if seconds is None else seconds
        self.step_seconds = 900.0 if seconds is None else seconds
        self._saved_at = 0.0
        self._saved_step = -1
        self._validation_due = False

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Contents
    ) -> None:
        facts: dict[str, bool | int] = {"validation_due": self._validation_due}
        data = counting_data(trainer)
        if data is not None:  # images in a step of all processes; a resumed run must have as many
            images = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
            facts["global_batch"] = images
        checkpoint["run"] = facts

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step  # a run that has just been read needs no saving

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        due = (
            batch_idx > 0 and batch_idx % (self.CHECK_EVERY * trainer.accumulate_grad_batches) == 0
        )
        if due and self._waited(trainer, self.step_seconds):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.fit_loop.done or self._waited(trainer, self.epoch_seconds):
            self._save(trainer)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Only a stop that was agreed on falls between two steps, on all processes.
        agreed = isinstance(exception, Stopped) and exception.agreed
        if agreed and trainer.state.fn == TrainerFn.FITTING and self._saved_step >= 0:
            self._validation_due = trainer.validating
            self._save(trainer)

    def _waited(self, trainer: Trainer, seconds: float) -> bool:
        """True if the last save is as long ago, by the first process's clock."""
        return trainer.strategy.broadcast(time.monotonic() - self._saved_at >= seconds)

    def _save(self, trainer: Trainer) -> None:
        debugging: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        if debugging or trainer.global_step == self._saved_step:
            return
        trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and position too
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, then renames.

    Lightning moves a file from the system's temporary folder: a copy, if on another file system.
    """

    @override
    def save_checkpoint(
        self, checkpoint: Contents, path: str | Path, storage_options: object = None
    ) -> None:
        write_torch(Path(path), checkpoint)

    @override
    def load_checkpoint(
        self, path: str | Path, *args: object, **options: object
    ) -> dict[str, object]:
        return read_checkpoint(Path(path))


def averages(trainer: Trainer) -> bool:
    """True if a callback of the run averages its weights; then checkpoints have both."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return any(isinstance(callback, WeightAveraging) for callback in callbacks)
