"""One progress line for a whole run: rate, time spent waiting for data, ETA, loss, accuracy."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vit.console import say
from vit.training.budget import time_limit, time_used


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class RunProgress(ProgressBar):
    """Progress of the run, not of the epoch, on standard error.

    A terminal gets one line that is redrawn; a file or a pipe gets a plain line every tenth of the
    run.
    "data 40%" is the share of the time that training waits for the loader.
    """

    REFRESH_SECONDS = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True)
        self._enabled = True
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._scores: dict[str, float] = {}
        self._evaluated = 0.0

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    @property
    def is_disabled(self) -> bool:
        return not self._enabled

    # Training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = self._shown = self._last_end = time.monotonic()
        self._first_fraction = self._fraction(trainer)
        self._tenths = int(self._first_fraction * 10)
        self._images = self._waited = self._evaluated = 0.0
        self._open("train")

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._waited += time.monotonic() - self._last_end

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = self._last_end = time.monotonic()
        self._images += len(batch[0]) * trainer.world_size
        # Reading the loss waits for the device, so it happens twice a second and not every step.
        if now - self._shown < self.REFRESH_SECONDS:
            return
        self._shown = now
        fraction = self._fraction(trainer)
        line = self._line(trainer, pl_module, fraction)
        if self._progress is not None:
            self._progress.update(self._task, completed=fraction, description=line)
        elif self._enabled and int(fraction * 10) > self._tenths:
            self._tenths = int(fraction * 10)
            say(f"{fraction:4.0%}  {line}")

    def _fraction(self, trainer: Trainer) -> float:
        """The share of the run's budget (steps, epochs or time) that is used up."""
        shares = [0.0]
        if trainer.max_steps > 0:
            shares.append(trainer.global_step / trainer.max_steps)
        if trainer.max_epochs is not None and trainer.max_epochs > 0:
            batches = max(float(trainer.num_training_batches), 1.0)
            done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            epochs = trainer.current_epoch + min(done / batches, 1.0)
            shares.append(epochs / trainer.max_epochs)
        timer = time_limit(trainer)
        if timer is not None:
            shares.append(time_used(timer))
        return min(max(shares), 1.0)

    def _line(self, trainer: Trainer, pl_module: LightningModule, fraction: float) -> str:
        elapsed = time.monotonic() - self._start
        done = fraction - self._first_fraction
        left = (1 - fraction) / done * elapsed if done > 0 else 0.0
        busy = max(elapsed - self._evaluated, 1e-9)
        metrics = self.get_metrics(trainer, pl_module)
        self._scores.update({k: float(v) for k, v in metrics.items() if isinstance(v, float | int)})
        epoch, last = trainer.current_epoch + 1, trainer.max_epochs or 0
        parts = [
            # When training has ended, Lightning counts one epoch more.
            f"epoch {min(epoch, last)}/{last}" if last > 0 else f"epoch {epoch}",
            f"{self._images / busy:,.0f} img/s",
            f"data {self._waited / busy:.0%}",
            f"ETA {clock(left)}",
        ]
        for key, label in (
            ("train/loss", "loss"),
            ("val/acc1", "val acc"),
            ("val/map", "val mAP"),
        ):
            if key in self._scores:
                form = ".3f" if "loss" in key else ".1%"
                parts.append(f"{label} {self._scores[key]:{form}}")
        return "  ".join(parts)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._progress is not None:
            line = self._line(trainer, pl_module, 1.0)
            self._progress.update(self._task, completed=self._fraction(trainer), description=line)
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    # Evaluation: a line of its own, unless it happens inside training

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluation_start = time.monotonic()
        if trainer.state.fn != "fit":
            self._open_evaluation(trainer, "validate")

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if self._progress is not None and trainer.state.fn != "fit":
            self._progress.advance(self._task)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.monotonic()
        if trainer.state.fn == "fit":
            self._evaluated += now - self._evaluation_start
            self._last_end = now
        else:
            self._close()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open_evaluation(trainer, "test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._open_evaluation(trainer, "predict")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._close()

    on_predict_end = on_test_end

    def _open_evaluation(self, trainer: Trainer, name: str) -> None:
        batches = {
            "validate": trainer.num_val_batches,
            "test": trainer.num_test_batches,
            "predict": trainer.num_predict_batches,
        }[name]
        self._open(name, total=sum(batches) if isinstance(batches, list) else batches)

    def _open(self, name: str, total: float = 1.0) -> None:
        self._close()
        if not self._enabled or not self._console.is_terminal:
            return
        columns = [BarColumn(bar_width=24), TextColumn("{task.percentage:3.0f}%")]
        if name != "train":
            columns.append(TimeRemainingColumn())
        self._progress = Progress(
            TextColumn(name),
            *columns,
            TextColumn("{task.description}"),
            console=self._console,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
