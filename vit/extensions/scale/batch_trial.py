"""The batch that fits: `--data.batch_size auto`, tried on the GPUs of a run."""

import gc
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from vit.console import say
from vit.data.batches import DEFAULT_BATCH
from vit.errors import UserError, check_types
from vit.runs.records import recorded_options
from vit.training.counted_data import counting_data
from vit.training.image_classifier import ImageClassifier
from vit.training.network_training import NetworkTraining

RESERVE = 0.05
"""Share of a GPU's memory that a trial leaves free, for fragmentation and communication."""
SET_BY_TRIAL = ("accumulate_grad_batches", "val_check_interval", "limit_train_batches")
"""Arguments of the Trainer; whole numbers of the last two count batches."""


def computes_on_cpu(accelerator: str) -> bool:
    """A Trainer with that accelerator computes on the CPU."""
    if accelerator != "auto":
        return accelerator == "cpu"
    return not torch.cuda.is_available() and not torch.backends.mps.is_available()


def batch_by_trial(
    config: Namespace, recipes: Sequence[Mapping[str, Any]], run: Path | None
) -> list[Callback]:
    """Row of the table `values`: the recipe's number for now, and its trial; a resumed run keeps
    its batch. UserError on a CPU."""
    data, trainer = config.data, config.trainer
    if computes_on_cpu(trainer.accelerator or "auto"):
        raise UserError(
            "data.batch_size=auto tries batches on a GPU; on a CPU a larger batch is hardly "
            "faster: give a number, such as --data.batch_size 32"
        )
    if run is not None:
        before = recorded_options(run)
        check_types(run, before, data=dict, trainer=dict)
        check_types(f"{run}: data", before["data"], batch_size=int | None)
        data.batch_size = before["data"]["batch_size"]
        for name in SET_BY_TRIAL:
            trainer[name] = before["trainer"].get(name)
        return []
    numbers = [(recipe.get("data") or {}).get("batch_size") for recipe in recipes]
    numbers = [DEFAULT_BATCH, *(n for n in numbers if isinstance(n, int))]
    data.batch_size = numbers[-1] if data.global_batch is None else None
    return [BatchTrial(config)]


class BatchTrial(Callback):
    """Chooses the largest batch that fits on all processes, by trial, and writes it to the options
    of the run. The images per step stay the same."""

    def __init__(self, config: Namespace) -> None:
        self._config = config

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            raise UserError(
                "data.batch_size=auto tries batches on single GPUs and with ddp, not with "
                f"{type(trainer.strategy).__name__}; give a number"
            )
        data = counting_data(trainer)
        assert data is not None and isinstance(pl_module, NetworkTraining)
        processes, before = trainer.world_size, trainer.accumulate_grad_batches
        images = data.batch_size * before
        paired = isinstance(pl_module, ImageClassifier) and bool(pl_module.mixing)
        sizes = batch_sizes(images * processes, processes, paired=paired) or [images]
        largest = largest_batch(trainer, pl_module, sizes)
        gc.collect()  # the trial's copy, before the run takes its memory
        torch.cuda.empty_cache()
        device = trainer.strategy.root_device
        fitting = torch.tensor(largest, device=device)
        largest = int(trainer.strategy.reduce(fitting, reduce_op="min"))
        if not largest:
            raise UserError(
                f"data.batch_size=auto: not even a batch of {sizes[0]} fits on {device}; choose a "
                "smaller model or image"
            )
        batches = images // largest
        data.batch_size = self._config.data.batch_size = largest
        trainer.accumulate_grad_batches = batches
        for name in SET_BY_TRIAL[1:]:
            if type(getattr(trainer, name)) is int:
                setattr(trainer, name, max(1, getattr(trainer, name) // before) * batches)
        for name in SET_BY_TRIAL:
            self._config.trainer[name] = getattr(trainer, name)
        say(
            f"batch size {largest:,} on each of {processes:,} processes, tried on the device: "
            f"{batches:,} per step of {images * processes:,} images (--data.batch_size auto)"
        )


def largest_batch(trainer: Trainer, module: NetworkTraining, sizes: Sequence[int]) -> int:
    """The largest of ascending batch sizes that fits, if all smaller ones do; 0 if none.

    Tried by two training steps on random images with a copy of a run's module; gradients
    accumulate. Weights and random numbers of the run stay as they were.
    """
    device, precision = trainer.strategy.root_device, trainer.precision_plugin
    copy = deepcopy(module)
    copy.trainer = trainer
    copy.setup("fit")  # which loads a teacher
    precision.convert_module(copy).to(device).train()
    if isinstance(copy, ImageClassifier) and copy.loss.teacher is not None:
        copy.loss.teacher.to(device, next(copy.parameters()).dtype)
    # For the buckets of ddp or the first weights of an average, and for fragmentation.
    reserve = 4 * sum(p.numel() for p in copy.parameters() if p.requires_grad)
    if device.type == "cuda":
        reserve += round(RESERVE * torch.cuda.get_device_properties(device).total_memory)
    _held = torch.empty(reserve, dtype=torch.uint8, device=device)
    optimizer = copy.make_optimizer()

    def fails(size: int) -> bool:
        failed = False
        try:
            _step_twice(copy, optimizer, precision, size)
        except torch.OutOfMemoryError:
            failed = True
        # Here the error, which holds the tensors of its frames, is gone.
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return failed

    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        fitting = bisect_left(sizes, True, key=fails)
    return sizes[fitting - 1] if fitting else 0


def _step_twice(module: NetworkTraining, optimizer: Any, precision: Any, size: int) -> None:
    config, device = module.model.config, module.device
    targets = torch.zeros(size, dtype=torch.long, device=device)
    if module.extra()["multilabel"]:
        targets = torch.zeros(size, config.num_classes, device=device)
    for _ in range(2):
        images = torch.randn(size, config.in_channels, *config.size, device=device)
        indices = torch.arange(size, device=device)
        with precision.forward_context():
            loss = module.training_loss((images, targets, indices))
        loss.backward()
        optimizer.step()


def batch_sizes(whole: int, processes: int, *, paired: bool) -> list[int]:
    """Sizes of batches of one process of which a whole number makes a step, ascending.

    Args:
        whole: Images of a step of all processes; a multiple of `processes`.
        processes: Number of processes that train together.
        paired: Images are mixed in pairs, so that batches are even unless one is the step.
    """
    share = whole // processes
    small = [n for n in range(1, isqrt(share) + 1) if share % n == 0]
    sizes = sorted({*small, *(share // n for n in small)})
    return [n for n in sizes if not paired or n % 2 == 0 or n == whole]
