"""best.ckpt, which a finished run is, last.ckpt, where an interrupted run continues, previous.ckpt,
the one before, and how they are written: whole or absent, and with a digest."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from typing_extensions import override

from vit.checkpoints.sealed import LAST, PREVIOUS, is_whole, seal
from vit.signals import Stopped
from vit.training.callbacks.stopping import StopTogether
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
        """Takes up the best score so far, also where the run has been moved or renamed since.

        Lightning records absolute paths, and would read the old folder's file and drop the score.
        """
        best = state_dict["best_model_path"]
        if not best:
            super().load_state_dict(state_dict)
            return
        assert self.dirpath is not None
        here = Path(self.dirpath) / Path(best).name
        if not here.is_file() or not is_whole(here):
            _note_lost(here)
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


@rank_zero_only
def _note_lost(best: Path) -> None:
    fault = "is damaged" if best.is_file() else "is not there"
    print(
        f"note: {best} {fault}; the best score starts over from the next validation",
        file=sys.stderr,
    )


class LastCheckpoint(StopTogether):
    """Saves `last.ckpt` when the run ends, at ends of epochs, and now and then in long epochs.

    The clock decides, but only between steps of the optimizer, so that nothing accumulated is lost.

    Ctrl-C and SIGTERM, at any of a run's processes, let all of them finish the step and save; a
    second Ctrl-C does not wait.

    Args:
        directory: Where the file goes.
        epoch_seconds: Time between two saves at ends of epochs.
        step_seconds: Time after which an epoch is interrupted for a save.
    """

    # Why this is not Lightning's ModelCheckpoint. That one saves at a fixed count of epochs or
    # steps: on thirty photos a file of the model's size every second, on ImageNet one per hour. Its
    # train_time_interval excludes ends of epochs, broadcasts in every batch, and may save between
    # batches whose gradients are accumulated. Its save_on_exception knows nothing of a stop that
    # all processes have agreed on, which is what a StopTogether waits for.

    CHECK_EVERY = 50  # steps: all processes must agree on the clock, which takes a broadcast

    def __init__(
        self, directory: str | Path, *, epoch_seconds: float = 60, step_seconds: float = 900
    ) -> None:
        super().__init__()
        self.path = Path(directory) / LAST
        self.epoch_seconds = epoch_seconds
        self.step_seconds = step_seconds
        self._saved_at = 0.0
        self._saved_step = -1
        self._global_batch: int | None = None
        self._repeats_validation = False

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        # Images in a step of all processes; a run that goes on must have as many. Not by
        # `state_dict`, since Lightning takes only one callback of a class that has one.
        if self._global_batch is not None and "callbacks" in checkpoint:
            checkpoint["callbacks"]["LastCheckpoint"] = {"global_batch": self._global_batch}
        if self._repeats_validation:
            _repeat_validation(checkpoint["loops"]["fit_loop"])

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data = counting_data(trainer)
        if data is not None:
            accumulated = trainer.accumulate_grad_batches
            self._global_batch = data.batch_size * trainer.world_size * accumulated
        # Only the first process knows the run's directory.
        self.path = trainer.strategy.broadcast(self.path)
        super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved_at = time.monotonic()
        self._saved_step = trainer.global_step  # a run that has just been read needs no saving
        super().on_train_start(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Only a stop that was agreed on falls between two steps, on all processes. Another
        # callback of the kind may have come first, and raised it.
        agreed = isinstance(exception, Stopped) and exception.agreed
        if agreed and trainer.state.fn == TrainerFn.FITTING and self._saved_step >= 0:
            self._repeats_validation = trainer.validating
            self._save(trainer)
        super().on_exception(trainer, pl_module, exception)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        due = (batch_idx + 1) % (self.CHECK_EVERY * trainer.accumulate_grad_batches) == 0
        if due and not trainer.is_last_batch and self._waited(trainer, self.step_seconds):
            self._repeats_validation = _validation_follows(trainer)
            self._save(trainer)
            self._repeats_validation = False

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs, steps = trainer.max_epochs, trainer.max_steps
        ends = (
            trainer.should_stop
            or (epochs is not None and 0 < epochs <= trainer.current_epoch + 1)
            or 0 < steps <= trainer.global_step
        )
        if ends or self._waited(trainer, self.epoch_seconds):
            self._save(trainer)
        super().on_train_epoch_end(trainer, pl_module)  # a signal during the validation

    def _waited(self, trainer: Trainer, seconds: float) -> bool:
        """Whether that much time has passed, by the first process's clock."""
        return trainer.strategy.broadcast(time.monotonic() - self._saved_at >= seconds)

    def _save(self, trainer: Trainer) -> None:
        debugging: bool = trainer.fast_dev_run  # pyright: ignore[reportAttributeAccessIssue]
        if debugging or trainer.global_step == self._saved_step:
            return
        trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and position too
        self._saved_at, self._saved_step = time.monotonic(), trainer.global_step


def _validation_follows(trainer: Trainer) -> bool:
    """Whether the batch that has just been trained on is followed by a validation."""
    loop: Any = trainer.fit_loop
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def _repeat_validation(loop: dict[str, Any]) -> None:
    """Lets a run that goes on begin with the validation that a stop or a kill has cut off.

    Lightning takes these counts for those of a validation in its first batch, and finishes it. By
    its own counts it would leave the validation out.
    """
    trained = loop["epoch_loop.batch_progress"]  # not yet counted at the end of a batch
    for counts in (trained["total"], trained["current"]):
        counts["completed"] = counts["processed"]
    progress = loop["epoch_loop.val_loop.batch_progress"]
    before = progress["total"]["completed"]
    progress["total"] = dict.fromkeys(("ready", "started"), before + 1)
    progress["total"] |= dict.fromkeys(("processed", "completed"), before)
    progress["current"] = dict.fromkeys(progress["current"], 0)
    progress["is_last_batch"] = False


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target with a digest, flushes to disk, then renames.

    The last.ckpt that is replaced becomes previous.ckpt, unless it is damaged. At any moment one of
    the two is whole.

    Lightning's own writes to the system's temporary folder and moves: on another file system that
    is a copy, and a crash during it leaves half a checkpoint under the final name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: set[Path] = set()

    @override
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        if storage_options is not None:
            raise TypeError("storage_options have no meaning for a local file")
        if "://" in str(path):  # a remote store: only Lightning's own way of writing reaches it
            return super().save_checkpoint(checkpoint, path)
        try:
            with atomic(Path(path), before=lambda: self._keep(Path(path))) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                seal(temporary)
        except (OSError, RuntimeError) as error:
            # On a full disk torch fails once more while it closes the file, and hides the reason.
            reason = error if isinstance(error, OSError) else error.__context__
            if isinstance(reason, OSError):
                raise OSError(reason.errno, reason.strerror, str(path)) from error
            raise
        self._written.add(Path(path))

    def _keep(self, path: Path) -> None:
        """Renames the last.ckpt at `path`; one of another process is read first."""
        if path.name == LAST and path.is_file() and (path in self._written or is_whole(path)):
            path.replace(path.with_name(PREVIOUS))
