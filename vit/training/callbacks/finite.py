"""The end of a run whose loss or weights are NaN or infinite."""

import math
from collections.abc import Mapping

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.errors import UserError
from vit.training.parts import local


class FiniteLoss(Callback):
    """Stops a run whose loss is not finite, and names the step.

    The device tests each loss; the result is read, which synchronises, at the logging interval,
    before an evaluation and, with a test of the weights, before a save.
    """

    def __init__(self) -> None:
        self._first_bad: Tensor | None = None
        """A step, or infinity."""
        self._step = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_bad = torch.tensor(math.inf, device=pl_module.device)

    def on_train_batch_start(self, trainer: Trainer, *_: object, **__: object) -> None:
        self._step = trainer.global_step + 1  # that this batch is for, also if it is accumulated

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, *_: object, **__: object
    ) -> None:
        assert self._first_bad is not None and isinstance(outputs, Mapping)
        earlier = self._first_bad.clamp(max=self._step)
        self._first_bad = torch.where(outputs["loss"].isfinite(), self._first_bad, earlier)
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if interval and self._step % interval == 0:
            self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        self._check(trainer)

    on_validation_start = on_train_epoch_end

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        self._check(trainer)
        finite = torch.stack([local(p).isfinite().all() for p in pl_module.parameters()]).all()
        if not trainer.strategy.reduce(finite.float(), reduce_op="min"):
            _stop(f"the weights are not finite after step {trainer.global_step}")

    def _check(self, trainer: Trainer) -> None:
        if self._first_bad is not None:
            step = float(trainer.strategy.reduce(self._first_bad.clone(), reduce_op="min"))
            if math.isfinite(step):
                _stop(f"the loss is not finite since step {int(step)}")


def _stop(reason: str) -> None:
    raise UserError(
        f"{reason}: training stopped, checkpoints are from before it; lower the learning rate, "
        "lengthen model.schedule.warmup_steps or set --trainer.gradient_clip_val 1"
    )
