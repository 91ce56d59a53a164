"""Ends of a run before its limit: a stop that all processes agree on, and patience.

The handler of a signal sets a flag. An all-reduce of one integer on the CPU, which waits for no
GPU, compares the flags between optimizer steps, between batches of an evaluation, and at the ends
of epochs.
"""

from contextlib import ExitStack
from datetime import timedelta

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping

from vit import signals
from vit.signals import Stopped
from vit.training.lightning_internals import ignore_signals
from vit.training.saving import Contents

PATIENCE = timedelta(minutes=10)
"""Time that a process waits for the others between two steps before it fails."""


class StopTogether(Callback):
    """Ends all processes of a fit or an evaluation, at one point, when any gets a signal.

    Raises vit.signals.Stopped. A run of one process stops between two steps of training, and at
    once everywhere else.
    """

    def __init__(self) -> None:
        self._handlers = ExitStack()
        self._listening = False
        self._group: dist.ProcessGroup | None = None
        self._between_steps = True

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        ignore_signals(trainer)
        self._between_steps = True
        self._handlers.enter_context(signals.handled())
        if trainer.world_size > 1:
            self._listen(several=True)
            if self._group is None and dist.is_initialized():
                self._group = dist.new_group(backend="gloo", timeout=PATIENCE)  # pyright: ignore
            self._agree()

    def on_train_start(self, trainer: Trainer, *_: object, **__: object) -> None:
        for callback in trainer.early_stopping_callbacks:
            if callback.wait_count and callback.wait_count >= callback.patience:
                trainer.should_stop = True  # resumed after its stop, which no checkpoint holds
        self._listen(several=trainer.world_size > 1)
        self._agree()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        # Not at the end of a batch, before its metrics are logged and a validation has followed.
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._agree()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        full = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._between_steps = full or trainer.is_last_batch

    def on_train_epoch_end(self, *_: object, **__: object) -> None:
        self._agree()

    on_test_end = on_train_epoch_end

    def on_train_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        self._agree()
        if trainer.world_size == 1:
            self._handlers.close()
            self._listening = False

    def on_validation_batch_end(self, *_: object, **__: object) -> None:
        # Gradients that wait for more batches would be lost with a stop. All processes have as many
        # batches of an evaluation: see ImageData.evaluation_loader.
        if self._between_steps:
            self._agree()

    def on_test_start(self, *_: object, **__: object) -> None:
        self._between_steps = True

    on_test_batch_end = on_validation_batch_end

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._listening = False
        self._handlers.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, *_: object, **__: object) -> None:
        self._listening = False
        self._handlers.close()

    def _listen(self, *, several: bool) -> None:
        if not self._listening:
            self._listening = True
            self._handlers.enter_context(signals.deferred(several=several))

    def _agree(self) -> None:
        """Raises Stopped on all processes if one of them has got a signal."""
        if self._listening:
            number = torch.tensor(signals.received())
            if self._group is not None:
                dist.all_reduce(number, dist.ReduceOp.MAX, group=self._group)
            if number:
                raise Stopped(int(number), agreed=True)


class Patience(EarlyStopping):
    """EarlyStopping whose patience is the argument, not that of the checkpoint."""

    def load_state_dict(self, state_dict: Contents) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})
