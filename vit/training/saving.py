"""Writes best.ckpt (the result) and last.ckpt (to resume from): whole, or not at all."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from vit.checkpoints.archives import LAST, check_archive
from vit.console import note
from vit.errors import UserError
from vit.signals import Stopped
from vit.training.counted_data import counting_data
from vit.writing import atomic


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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the best score so far, also where the run has been moved or renamed since.

        Lightning records absolute paths, and would read the old folder's file and drop the score.
        """
        best = state_dict["best_model_path"]
        if not best:
            super().load_state_dict(state_dict)
            return
        assert self.dirpath is not None
        here = Path(self.dirpath) / Path(best).name
        try:
            check_archive(here)
        except (UserError, OSError) as error:
            reason = f"{here} is not there" if isinstance(error, FileNotFoundError) else error
            note(f"{reason}; the best score starts over from the next validation")
            return
        moved = {
            "dirpath": self.dirpath,
            "best_model_path": str(here),
            "kth_best_model_path": str(here),
            "best_k_models": {str(here): state_dict["best_model_score"]},
        }
        super().load_state_dict({**state_dict, **moved})

    def check_monitor_top_k(self, trainer: Trainer, current: Tensor | None = None) -> bool:
        equal = current is not None and self.best_model_score == current
        return bool(equal) or super().check_monitor_top_k(trainer, current)


class LastCheckpoint(Checkpoint):
    """Saves `last.ckpt` when the run ends or is stopped, at ends of epochs, and in long epochs.

    The clock decides, but only between steps of the optimizer, so that nothing accumulated is lost.

    Args:
        directory: Where the file goes.
        seconds: Time between two saves; by default 60 at ends of epochs, 900 within an epoch.
    """

    # Lightning's ModelCheckpoint saves at a count of epochs or steps: on thirty photos every
    # second, on ImageNet once per hour. Its train_time_interval excludes ends of epochs and may
    # save between batches whose gradients are accumulated. Its save_on_exception also saves where
    # one process alone has failed and the others wait.

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
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        facts: dict[str, Any] = {"validation_due": self._validation_due}
        data = counting_data(trainer)
        if data is not None:  # images in a step of all processes; a resumed run must have as many
            images = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
            facts["global_batch"] = images
        checkpoint["run"] = facts

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step  # a run that has just been read needs no saving

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        due = (
            batch_idx > 0 and batch_idx % (self.CHECK_EVERY * trainer.accumulate_grad_batches) == 0
        )
        if due and self._waited(trainer, self.step_seconds):
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

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Only a stop that was agreed on falls between two steps, on all processes.
        agreed = isinstance(exception, Stopped) and exception.agreed
        if agreed and trainer.state.fn == TrainerFn.FITTING and self._saved_step >= 0:
            self._validation_due = trainer.validating
            self._save(trainer)

    def _waited(self, trainer: Trainer, seconds: float) -> bool:
        """True if that much time has passed, by the first process's clock."""
        return trainer.strategy.broadcast(time.monotonic() - self._saved_at >= seconds)

    def _save(self, trainer: Trainer) -> None:
        debugging: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        if debugging or trainer.global_step == self._saved_step:
            return
        trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and position too
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, then renames.

    Lightning's own writes to the system's temporary folder and moves: on another file system that
    is a copy, and a crash during it leaves half a checkpoint under the final name.
    """

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        if "://" in str(path):  # a remote store: only Lightning's own way of writing reaches it
            return super().save_checkpoint(checkpoint, path, storage_options)
        try:
            with atomic(Path(path)) as temporary, temporary.open("wb") as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:
            # On a full disk torch fails once more while it closes the file, and hides the reason.
            reason = error if isinstance(error, OSError) else error.__context__
            if isinstance(reason, OSError):
                raise OSError(reason.errno, reason.strerror, str(path)) from error
            raise
