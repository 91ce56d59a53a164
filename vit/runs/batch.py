"""The batch of a run: `--data.batch_size auto` on GPUs, and running out of memory in one line."""

import gc
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from vit.console import say
from vit.data.batches import DEFAULT_BATCH, batch_sizes
from vit.data.module import ImageData
from vit.errors import UserError
from vit.hardware import computes_on_cpu
from vit.yaml_reader import read_options

RESERVE = 0.05
"""Share of a GPU's memory that a trial leaves free, for fragmentation and communication."""
SET_BY_TRIAL = ("accumulate_grad_batches", "val_check_interval", "limit_train_batches")
"""Arguments of the Trainer; whole numbers of the last two count batches."""


def settle_batch(config: Namespace, recipes: Sequence[Mapping[str, Any]], run: Path | None) -> bool:
    """Replaces data.batch_size=auto in `config` by the recipe's number; True if a trial follows.

    A resumed run, with config.yaml at `run`, keeps its batch. UserError for auto on a CPU.
    """
    data, trainer = config.data, config.trainer
    if data.batch_size != "auto":
        if data.batch_size is None and data.global_batch is None:
            data.batch_size = DEFAULT_BATCH  # config.yaml says what was used
        return False
    if computes_on_cpu(trainer.accelerator or "auto"):
        raise UserError(
            "data.batch_size=auto tries batches on a GPU; on a CPU a larger batch is hardly "
            "faster: give a number, such as --data.batch_size 32"
        )
    if run is not None:
        before = read_options(run)
        data.batch_size = before["data"]["batch_size"]
        for name in SET_BY_TRIAL:
            trainer[name] = before["trainer"][name]
        return False
    numbers = [recipe.get("data", {}).get("batch_size") for recipe in recipes]
    numbers = [DEFAULT_BATCH, *(n for n in numbers if isinstance(n, int))]
    data.batch_size = numbers[-1] if data.global_batch is None else None
    return True


def choose_batch(
    config: Namespace, asked: bool, trainer: Trainer, module: LightningModule, stage: str
) -> None:
    """A callback's `setup`, which if `asked` chooses the largest batch that fits on all processes,
    by trial, and writes it to `config`. The images per step stay the same.
    """
    if not asked or stage != "fit":
        return
    if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
        raise UserError(
            "data.batch_size=auto tries batches on single GPUs and with ddp, not with "
            f"{type(trainer.strategy).__name__}; give a number"
        )
    data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    processes, before = trainer.world_size, trainer.accumulate_grad_batches
    images = data.batch_size * before
    paired = bool(getattr(module, "mixing", None))
    sizes = batch_sizes(images * processes, processes, paired=paired) or [images]
    largest = Trial(trainer, module).largest(sizes)
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
    data.batch_size = config.data.batch_size = largest
    trainer.accumulate_grad_batches = batches
    for name in SET_BY_TRIAL[1:]:
        if type(getattr(trainer, name)) is int:
            setattr(trainer, name, max(1, getattr(trainer, name) // before) * batches)
    for name in SET_BY_TRIAL:
        config.trainer[name] = getattr(trainer, name)
    say(
        f"batch size {largest:,} on each of {processes:,} processes, tried on the device: "
        f"{batches:,} per step of {images * processes:,} images (--data.batch_size auto)"
    )


class Trial:
    """Two training steps on random images with a copy of a run's module; gradients accumulate.

    Weights and random numbers of the run stay as they were.
    """

    def __init__(self, trainer: Trainer, module: Any) -> None:
        self._device, self._precision = trainer.strategy.root_device, trainer.precision_plugin
        copy: Any = deepcopy(module)
        copy.trainer = trainer
        copy.setup("fit")  # which loads a teacher
        copy = self._precision.convert_module(copy).to(self._device).train()
        teacher = getattr(copy, "teacher", None)
        if teacher is not None:
            teacher.to(self._device, next(copy.parameters()).dtype)
        # For the buckets of ddp or the first weights of an average, and for fragmentation.
        held = 4 * sum(p.numel() for p in copy.parameters() if p.requires_grad)
        if self._device.type == "cuda":
            held += round(RESERVE * torch.cuda.get_device_properties(self._device).total_memory)
        self._held = torch.empty(held, dtype=torch.uint8, device=self._device)
        self._copy, self._optimizer = copy, copy.make_optimizer()

    def largest(self, sizes: Sequence[int]) -> int:
        """The largest of ascending batch sizes that fits, if all smaller ones do; 0 if none."""
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            fitting = bisect_left(sizes, True, key=lambda size: not self.fits(size))
        return sizes[fitting - 1] if fitting else 0

    def fits(self, size: int) -> bool:
        """`size` images fit."""
        fitted = True
        try:
            self._step_twice(size)
        except torch.OutOfMemoryError:
            fitted = False
        # Here the error, which holds the tensors of its frames, is gone.
        self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return fitted

    def _step_twice(self, size: int) -> None:
        config, labels = self._copy.model.config, getattr(self._copy, "labels", None)
        several = labels is not None and labels.multilabel
        targets = torch.zeros(size, dtype=torch.long, device=self._device)
        if several:
            targets = torch.zeros(size, self._copy.num_classes, device=self._device)
        for _ in range(2):
            images = torch.randn(size, config.in_channels, *config.size, device=self._device)
            indices = torch.arange(size, device=self._device)
            with self._precision.forward_context():
                loss = self._copy.training_loss((images, targets, indices))
            loss.backward()
            self._optimizer.step()


@contextmanager
def naming_a_smaller_batch(trainer: Trainer, data: ImageData) -> Iterator[None]:
    """Turns running out of memory into a UserError that names half the batch."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not typed and "DefaultCPUAllocator" not in str(error):
            raise
        size, remedy = data.batch_size, "choose a smaller model or image"
        if size > 1:
            remedy = f"try --data.batch_size {size // 2}"
        if size > 1 and data.global_batch is None:
            twice = 2 * trainer.accumulate_grad_batches
            remedy += f" --trainer.accumulate_grad_batches {twice}"
        raise UserError(f"out of memory with batches of {size:,} images; {remedy}") from error
