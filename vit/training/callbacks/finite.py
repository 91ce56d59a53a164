"""A run ends when its loss, gradients or weights are NaN or infinite."""

import math
from itertools import chain
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from typing_extensions import override

from vit.errors import UserError


class FiniteLoss(Callback):
    """Stops a run whose loss, gradients or weights are not finite, and names the step.

    All is tested on the device. The result is read at the logging interval, before an evaluation
    and before anything is saved, so that it costs no synchronisation per step and that no broken
    weights reach a checkpoint. The scaler of 16-mixed precision skips steps whose gradients
    overflow; there only the loss is tested.
    """

    def __init__(self) -> None:
        self._first_bad: Tensor | None = None
        """First step whose loss, and first whose gradients, were not finite."""
        self._step = 1

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_bad = torch.full((2,), math.inf, device=pl_module.device)

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step + 1  # that this batch is for, also if it is accumulated

    @override
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        gradients = [p.grad for p in parameters if p.grad is not None]
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        if gradients and not scaled:
            self._mark(1, _all_finite(gradients))

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._mark(0, outputs["loss"].isfinite())
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if interval and self._step % interval == 0:
            self._check(trainer)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check(trainer)

    on_validation_start = on_train_epoch_end

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._check(trainer)
        # A finite loss may still have had gradients that overflow.
        finite = torch.stack([p.isfinite().all() for p in pl_module.parameters()])
        if not finite.all():
            _stop(f"the weights are not finite after step {trainer.global_step}")

    def _mark(self, which: int, finite: Tensor) -> None:
        assert self._first_bad is not None
        firsts = list(self._first_bad)
        firsts[which] = torch.where(finite, firsts[which], firsts[which].clamp(max=self._step))
        self._first_bad = torch.stack(firsts)

    def _check(self, trainer: Trainer) -> None:
        if self._first_bad is None:
            return
        loss, gradients = trainer.strategy.reduce(self._first_bad.clone(), reduce_op="min").tolist()
        step = min(loss, gradients)
        if math.isfinite(step):  # gradients follow from the loss
            what = "the loss is" if loss == step else "the gradients are"
            _stop(f"{what} not finite since step {int(step)}")


def _stop(what: str) -> None:
    raise UserError(
        f"{what}: training stopped, checkpoints are from before it; lower the learning rate, "
        "lengthen model.schedule.warmup_steps or set --trainer.gradient_clip_val 1"
    )


def _all_finite(tensors: list[Tensor]) -> Tensor:
    """Whether all numbers are finite, on the device of the tensors."""
    # A CPU adds squares six times as fast as it finds the largest number, and may wait for the sum.
    if tensors[0].is_cpu:
        finite = torch.nn.utils.get_total_norm(tensors).isfinite()
        if finite:
            return finite
    # A sum of squares can overflow where no number has.
    return torch.nn.utils.get_total_norm(tensors, math.inf).isfinite()
