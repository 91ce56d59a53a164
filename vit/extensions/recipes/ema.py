"""An average of the weights over the steps of a run."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from vit.errors import BELOW_ONE, UserError, check_range
from vit.training.parts import local


class EMA(WeightAveraging):
    """Exponential moving average of the weights after every optimizer step.

    Validation, tests and a checkpoint's `state_dict` use the average; the raw weights are in
    `current_model_state`. Step t (from 1) weighs the old average by min(decay, (1 + t) / (10 + t)),
    as tf.train.ExponentialMovingAverage with num_updates. Buffers are copied. With fsdp2 each
    process averages the rows that it holds.

    Args:
        decay: Weight of the old average in each update, in [0, 1).
    """

    def __init__(self, decay: float = 0.9999) -> None:
        check_range("decay", decay, BELOW_ONE)
        super().__init__(use_buffers=False)
        self._decay = decay
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        teacher = getattr(getattr(pl_module, "loss", None), "teacher", None)
        if getattr(teacher, "features", "none") != "none":  # whose projection is made later
            raise UserError(
                "vit.EMA does not go with model.loss.teacher.features: leave one of them out"
            )
        if stage == "fit" and isinstance(trainer.strategy, ModelParallelStrategy):
            # The module is whole until `configure_model`, and cannot be copied after it.
            tensors: Any = {id(p): nn.Parameter(p.to("meta")) for p in pl_module.parameters()}
            tensors[id(pl_module.device_mesh)] = None
            self._average_model = AveragedModel(deepcopy(pl_module, tensors))
            return
        # The module is still on the CPU, and so would be the average.
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, ModelParallelStrategy):
            assert self._average_model is not None
            state = pl_module.state_dict().items()
            shards = {name: t.to(torch.float32, copy=True) for name, t in state}
            self._average_model.module.load_state_dict(shards, assign=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step == 0 and self._average_model is not None:
            # Another callback may have fitted the head since `setup`.
            self._average_model.module.load_state_dict(pl_module.state_dict())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Lightning's own reads a counter on the device, and waits for it, at every step.
        step = trainer.global_step
        if step == self._latest_update_step:
            return  # gradients are being accumulated
        assert self._average_model is not None
        decay = min(self._decay, (1 + step) / (10 + step))
        average = self._average_model.module
        follow(average.parameters(), pl_module.parameters(), decay)
        for copied, current in zip(average.buffers(), pl_module.buffers(), strict=True):
            copied.copy_(current)  # the statistics of a BatchNorm
        self._latest_update_step = step

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing: the average moves with the steps."""

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        # Else a checkpoint of this moment would have average and raw weights exchanged.
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing yet: ModelCheckpoint may still save, and needs the raw weights."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step:  # else the average is of weights before the head was fitted
            super().on_train_end(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # The module holds the average now; Lightning would swap it out again in a later validation
        # and load the raw weights of a checkpoint in a later test.
        self._average_model = None


@torch.no_grad()
def follow(average: Iterable[Tensor], current: Iterable[Tensor], decay: float) -> None:
    """Moves an average, in place, on the parts of this process: decay x average + (1 - decay) x
    current."""
    target: list[Any] = [*map(local, average)]
    # Weights in bfloat16 would round a step of 1e-4 away; their average is in float32.
    pairs = zip(current, target, strict=True)
    source: list[Any] = [local(p).to(a.dtype) for p, a in pairs]
    torch._foreach_lerp_(target, source, 1 - decay)  # pyright: ignore[reportPrivateImportUsage]
