"""What must hold in every run: exact resume, finite weights, every image once."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.errors import UserError
from vit.seeds import step_seed
from vit.training.counted_data import Split, counting_data


class ConsumedSamples(Callback):
    """Counts the samples trained on, and makes every step's randomness a function of that count.

    The count is the only state that an exact resume needs: the sampler derives epoch and position
    from it, and dropout, stochastic depth and mixing are drawn from generators that are seeded with
    (seed, count, rank) before each step. Needs a data module with `seed` and `consumed_samples`;
    with any other data it does nothing.
    """

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        data = counting_data(trainer)
        if data is not None:
            torch.manual_seed(step_seed(data.seed, data.consumed_samples, trainer.global_rank))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        data = counting_data(trainer)
        if data is not None:
            data.consumed_samples += len(batch[0]) * trainer.world_size
            # On the CPU, so that the device is not waited for; float32 would round 16.8 million.
            count = torch.tensor(data.consumed_samples, dtype=torch.float64)
            pl_module.log("images", count, batch_size=1)


class FiniteLoss(Callback):
    """Stops a run whose loss or weights are NaN or infinite, and names the step.

    The losses are tested on the device. The result is read at the logging interval, before an
    evaluation and before anything is saved, so that it costs no synchronisation a step and that
    no broken weights reach a checkpoint.
    """

    def __init__(self) -> None:
        self._first_bad: Tensor | None = None
        self._step = 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._first_bad = torch.full((), math.inf, device=pl_module.device)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._step = trainer.global_step + 1  # that this batch is for, also if it is accumulated

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert self._first_bad is not None
        earliest = self._first_bad.clamp(max=self._step)
        self._first_bad = torch.where(outputs["loss"].isfinite(), self._first_bad, earliest)
        interval: int = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        if interval and self._step % interval == 0:
            self._check_losses(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_losses(trainer)

    on_validation_start = on_train_epoch_end

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._check_losses(trainer)
        # A finite loss may still have had gradients that overflow.
        finite = torch.stack([p.isfinite().all() for p in pl_module.parameters()])
        if not finite.all():
            self._stop(f"the weights are not finite after step {trainer.global_step}")

    def _check_losses(self, trainer: Trainer) -> None:
        if self._first_bad is None:
            return
        first = trainer.strategy.reduce(self._first_bad.clone(), reduce_op="min")
        if math.isfinite(float(first)):
            self._stop(f"the loss is not finite since step {int(first)}")

    def _stop(self, what: str) -> None:
        raise UserError(
            f"{what}: training stopped, checkpoints are from before it; lower the learning rate, "
            "lengthen model.schedule.warmup_steps or set --trainer.gradient_clip_val 1"
        )


class EveryImageOnce(Callback):
    """Asserts that an evaluation counted every image of its split exactly once.

    Images that were left out as unreadable, with on_error=skip, are known and added.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and is_whole(trainer.limit_val_batches):
            self._check(trainer, "val", pl_module.get_submodule("val_metrics"))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_whole(trainer.limit_test_batches):
            split: Split = getattr(pl_module, "evaluation_split", "test")
            self._check(trainer, split, pl_module.get_submodule("test_metrics"))

    def _check(self, trainer: Trainer, split: Split, metrics: Any) -> None:
        data = counting_data(trainer)
        if data is None:
            return
        left_out = torch.tensor(data.skipped_images(split), device=metrics.images.device)
        left_out = int(trainer.strategy.reduce(left_out, reduce_op="sum"))
        seen, expected = int(metrics.images.compute()), data.expected_images(split) - left_out
        if seen != expected:
            raise RuntimeError(f"{split}: {seen} images were counted, the set has {expected}")


def is_whole(limit: int | float) -> bool:
    """Whether a limit_..._batches of the Trainer leaves nothing out; 1 is one batch, 1.0 all."""
    return isinstance(limit, float) and limit == 1.0
