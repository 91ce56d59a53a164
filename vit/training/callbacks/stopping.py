"""A stop that all processes of a run agree on.

Lightning's own handler of SIGTERM broadcasts from inside the handler, which hangs where only one
process gets the signal. Here the handler sets a flag, and the flags are compared where all
processes are at the same point: after an optimizer step, between batches of an evaluation, and at
the ends of epochs. The comparison is an all-reduce of one integer on the CPU, so that no GPU is
waited for.
"""

from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from vit import signals
from vit.signals import Stopped

_MOST_BATCHES = 2**31
"""Stands for the infinity of a loader that does not know its length."""


class StopTogether(Checkpoint):
    """Ends all processes of a fit or an evaluation, at one point, when any gets a signal.

    Raises vit.signals.Stopped. One process alone stops between two steps of training, and at once
    everywhere else. It is a Checkpoint because Lightning calls those after all other callbacks,
    which have then counted the step.
    """

    def __init__(self) -> None:
        self._held = ExitStack()
        self._listening = False
        self._group: Any = None
        self._between_steps = True
        self._common_batches = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        _take_over(trainer)
        self._between_steps = True
        self._held.enter_context(signals.handled())  # before Lightning looks at the handlers
        if trainer.world_size > 1:
            self._listen(several=True)
            if self._group is None and dist.is_initialized():
                self._group = dist.new_group(backend="gloo")
            self._agree()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._listen(several=trainer.world_size > 1)
        self._agree()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        full = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        self._between_steps = trainer.is_last_batch or full
        if self._between_steps:
            self._agree()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._agree()

    on_test_end = on_train_epoch_end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._agree()
        if trainer.world_size == 1:
            self._held.close()
            self._listening = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._count_batches(trainer.num_val_batches)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        # Gradients that wait for more batches would be lost.
        if self._between_steps and batch_idx < self._common_batches:
            self._agree()

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._count_batches(trainer.num_test_batches)

    on_test_batch_end = on_validation_batch_end

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._listening = False
        self._held.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._listening = False
        self._held.close()

    def _listen(self, *, several: bool) -> None:
        if not self._listening:
            self._listening = True
            self._held.enter_context(signals.deferred(several=several))

    def _agree(self) -> None:
        """Raises Stopped on all processes if one of them has got a signal."""
        if not self._listening:
            return
        number = self._reduced(signals.received(), dist.ReduceOp.MAX)
        if number:
            stop = Stopped(number)
            stop.agreed = True
            raise stop

    def _count_batches(self, batches: list[int | float]) -> None:
        # Odd sets leave some processes with a batch less; who has more goes on alone.
        batch_count = int(min(sum(batches), _MOST_BATCHES))
        self._common_batches = self._reduced(batch_count, dist.ReduceOp.MIN)

    def _reduced(self, value: int, how: Any) -> int:
        if self._group is None:
            return value
        tensor = torch.tensor(value)
        dist.all_reduce(tensor, how, group=self._group)
        return int(tensor)


def _take_over(trainer: Trainer) -> None:
    """Leaves SIGINT, SIGTERM and SIGUSR1 to this module."""
    connector: Any = trainer._signal_connector
    environment: Any = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):
        # Lightning would save in the middle of a step, to a file that it prefers to the run's own.
        environment.auto_requeue = False
    register = type(connector).register_signal_handlers

    def register_others() -> None:
        register(connector)
        for number in signals.HANDLED:  # Lightning would put ours back after we have removed them
            connector._original_handlers.pop(number, None)

    connector.register_signal_handlers = register_others
    connector._sigterm_notifier_fn = _nothing
    # Lightning's own agreement, a broadcast to the device in every step, which waits for a GPU.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing


def _nothing(*_: Any) -> None:
    """Takes the place of a function of Lightning's."""
