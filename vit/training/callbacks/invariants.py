"""Invariants of every run: exact resume, every image once."""

from collections.abc import Callable
from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn

from vit.seeds import step_seed
from vit.training.budget import batches_per_epoch
from vit.training.counted_data import Batch, counting_data
from vit.training.lightning_internals import begin_with_validation, place_loops
from vit.training.metrics import SplitMetrics
from vit.training.saving import Contents


class ConsumedSamples(Callback):
    """Counts the samples trained on, the only state of data and randomness in a checkpoint.

    The sampler and Lightning's loops derive epoch and position from the count, dropout its
    generators' seeds, `vit.training.draws` the rest. Without CountedData it does nothing.
    """

    def __init__(self) -> None:
        self._validation_began: Callable[[], None] | None = None
        """To call once the validation has begun with which a run continues."""

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: Contents
    ) -> None:
        data = counting_data(trainer)
        if data is None or trainer.state.fn != TrainerFn.FITTING:
            return
        per_epoch = batches_per_epoch(trainer)
        assert per_epoch is not None  # a data module that counts knows its length
        due = place_loops(
            trainer,
            checkpoint["loops"]["fit_loop"],
            batches=data.consumed_samples // (data.batch_size * trainer.world_size),
            batches_per_epoch=int(per_epoch),
            validation_due=bool(checkpoint.get("run", {}).get("validation_due")),
        )
        if due:
            step = checkpoint["global_step"]
            self._validation_began = begin_with_validation(trainer, step)

    def on_validation_start(self, *_: object, **__: object) -> None:
        if self._validation_began is not None:
            self._validation_began()
            self._validation_began = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, *_: object, **__: object
    ) -> None:
        data = counting_data(trainer)
        if data is not None:
            seed = step_seed(data.seed, data.consumed_samples, trainer.global_rank)
            # torch.manual_seed takes 1.5 ms for kinds of devices that are not there.
            torch.default_generator.manual_seed(seed)
            if pl_module.device.type != "cpu":
                torch.get_device_module(pl_module.device).manual_seed(seed)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: object, outputs: object, batch: Batch, batch_idx: int
    ) -> None:
        data = counting_data(trainer)
        if data is not None:
            data.consumed_samples += len(batch[0]) * trainer.world_size
            # On the CPU, so that the device is not waited for; float32 would round 16.8 million.
            count = torch.tensor(data.consumed_samples, dtype=torch.float64)
            trainer.lightning_module.log("images", count, batch_size=1)


class EveryImageOnce(Callback):
    """Asserts that an evaluation counted every image of its split once, unreadable ones aside."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and is_whole(trainer.limit_val_batches):
            self._check(trainer, "val", pl_module.val_metrics)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_whole(trainer.limit_test_batches):
            self._check(trainer, "test", pl_module.test_metrics)

    def _check(self, trainer: Trainer, stage: Literal["val", "test"], metrics: object) -> None:
        data = counting_data(trainer)
        if data is None:
            return
        assert isinstance(metrics, SplitMetrics)
        split = data.evaluation_split if stage == "test" else "val"
        left_out = torch.tensor(data.skipped_images(split), device=metrics.images.device)
        left_out = int(trainer.strategy.reduce(left_out, reduce_op="sum"))
        counted, expected = int(metrics.images.compute()), data.expected_images(split) - left_out
        if counted != expected:
            raise RuntimeError(f"{split}: {counted} images were counted, the set has {expected}")


def is_whole(limit: int | float) -> bool:
    """True if a limit_..._batches leaves nothing out: 1 is one batch, 1.0 all."""
    return isinstance(limit, float) and limit == 1.0
