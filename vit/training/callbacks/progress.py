"""The progress line of a run."""

import time

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar

from vit.console import Meter
from vit.training.budget import step_budget
from vit.training.counted_data import Batch, counting_data

SHOWN = {"train/loss": "loss {:.3f}", "val/acc1": "val acc {:.1%}", "val/map": "val mAP {:.1%}"}
"""Logged figures, and their formats."""


class RunProgress(ProgressBar):
    """Progress of the whole run on standard error: rate, ETA, loss, score.

    "data 40%" is the share of the time that training waits for the loader. An evaluation inside
    training has no line.
    """

    REFRESH_SECONDS = 0.5

    def __init__(self) -> None:
        super().__init__()
        self._meter: Meter | None = None
        self._scores: dict[str, float] = {}

    def disable(self) -> None:
        """Lightning calls it in all processes but the first, where a Meter shows nothing."""

    def on_train_start(self, *_: object, **__: object) -> None:
        self._shown = self._last_end = time.monotonic()
        self._busy = self._waited = 0.0
        self._images = 0
        self._open("train", 0, "img")

    def on_train_batch_start(self, *_: object, **__: object) -> None:
        self._waited += time.monotonic() - self._last_end

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self._busy += now - self._last_end
        self._last_end = now
        self._images += len(batch[0]) * trainer.world_size
        # Reading the loss waits for the device.
        if now - self._shown >= self.REFRESH_SECONDS:
            self._shown = now
            self._show(trainer)

    def _show(self, trainer: Trainer) -> None:
        fraction = self._fraction(trainer)
        if self._meter is not None and fraction:
            self._meter.total = (self._meter.done + self._images) / fraction
            self._meter.show(self._text(trainer))
            self._meter.advance(self._images)
            self._images = 0

    def _fraction(self, trainer: Trainer) -> float:
        """The used share of the run's steps; 0 until these are known."""
        steps = step_budget(trainer)
        return min(trainer.global_step / steps, 1.0) if steps else 0.0

    def _text(self, trainer: Trainer) -> str:
        metrics = self.get_metrics(trainer, trainer.lightning_module)
        self._scores.update({k: float(v) for k, v in metrics.items() if isinstance(v, float | int)})
        epoch, last = trainer.fit_loop.epoch_progress.current.ready, trainer.max_epochs or 0
        shown = f"{epoch}/{last}" if last > 0 else f"{epoch}"
        scores = [form.format(self._scores[k]) for k, form in SHOWN.items() if k in self._scores]
        waiting = f"data {self._waited / max(self._busy, 1e-9):.0%}"
        return "  ".join([f"epoch {shown}", *scores, waiting])

    def on_train_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        self._show(trainer)
        self._close()

    def on_test_start(self, trainer: Trainer, *_: object, **__: object) -> None:
        data = counting_data(trainer)
        split = data.evaluation_split if data else "test"
        self._open(split, sum(trainer.num_test_batches), "batches")

    def on_test_batch_end(self, *_: object, **__: object) -> None:
        if self._meter is not None:
            self._meter.advance()

    def on_validation_end(self, *_: object, **__: object) -> None:
        self._last_end = time.monotonic()  # the loader was not waited for

    def on_test_end(self, *_: object, **__: object) -> None:
        self._close()

    on_exception = on_test_end

    def _open(self, name: str, total: float, unit: str) -> None:
        self._close()
        self._meter = Meter(name, total, unit).__enter__()

    def _close(self) -> None:
        if self._meter is not None:
            self._meter.__exit__(None, None, None)
            self._meter = None
