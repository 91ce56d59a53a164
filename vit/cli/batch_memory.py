"""Which batches of a run fit into memory: by formula, and on a GPU by trying them.

Shapes: b batch, c channels, h w pixels, k classes.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from vit.compute.memory import (
    GIB,
    Activations,
    TrainingMemory,
    activations,
    largest_of,
)
from vit.compute.units import FLOAT
from vit.data.batches import batch_sizes
from vit.data.module import ImageData
from vit.errors import UserError
from vit.hardware import available_memory
from vit.models.zoo import ModelConfig
from vit.training.callbacks import FineTuneBySize
from vit.training.fitting import NetworkTraining
from vit.training.masked_patches import MaskedPatchPrediction

CPU_RESERVE = 0.25
"""Share of the free memory that is left to loader processes and other programs."""
GPU_RESERVE = 0.05
"""Share of a GPU's memory that a trial leaves free, for fragmentation and communication."""
PIXEL_BYTES = 16
"""Of each value of an image: as it waits in some loaded batches (uint8), normalised, mixed and cast
(float32)."""


def step_memory(
    model: ModelConfig,
    precision: str,
    *,
    trained: int,
    on_cpu: bool,
    checkpointing: bool = False,
    answers: int = 0,
) -> TrainingMemory:
    """Memory of a training step with AdamW, images included.

    A precision without a formula (16-true, 64-true) counts as float32.

    Args:
        model: With the size of the images.
        precision: As the Trainer spells it.
        trained: Parameters that are trained.
        on_cpu: Whether casts are those of a CPU.
        checkpointing: Whether layers are recomputed in the backward pass.
        answers: Numbers per image that a loss keeps, with their gradients, and that the
            architecture does not show.
    """
    mixed = "bf16-cpu" if on_cpu else "bf16"
    name = mixed if precision.endswith("-mixed") else "fp32"
    kept = activations(model, name, checkpointing=checkpointing)
    height, width = model.size
    own = PIXEL_BYTES * model.in_channels * height * width + 2 * FLOAT * answers
    whole = Activations(kept=kept.kept + own, recomputed=kept.recomputed, once=kept.once)
    return TrainingMemory(params=trained, precision=name, activations=whole)


def predicted_batch(trainer: Trainer, module: NetworkTraining[Any, Any], memory: int) -> int:
    """The largest batch of a process by formula in `memory` bytes; 0 if none fits."""
    answers = 0
    if isinstance(module, MaskedPatchPrediction):
        rows, columns = module.model.config.grid
        answers = round(module.fraction * rows * columns) * module.predictor.out_features
    step = step_memory(
        module.model.config,
        str(trainer.precision),
        trained=_trained(module),
        on_cpu=trainer.strategy.root_device.type == "cpu",
        checkpointing=getattr(module.model, "activation_checkpointing", False),
        answers=answers,
    )
    memory -= _beside(trainer, module)
    return step.largest_batch(memory // 2 if str(trainer.precision).startswith("64") else memory)


def process_memory(trainer: Trainer) -> int:
    """Bytes that a process of the run may use, less the reserve."""
    device = trainer.strategy.root_device
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return round(free + torch.cuda.memory_reserved(device) - GPU_RESERVE * total)
    return round((1 - CPU_RESERVE) * available_memory() / max(trainer.num_devices, 1))


def own_sizes(trainer: Trainer, module: NetworkTraining[Any, Any], data: ImageData) -> list[int]:
    """Batches of a process that keep the images of a step, ascending."""
    processes = trainer.world_size
    paired = bool(getattr(module, "mixing", None))
    whole = data.batch_size * processes * trainer.accumulate_grad_batches
    return batch_sizes(whole, processes, paired=paired)


def largest_batch(
    trainer: Trainer, module: NetworkTraining[Any, Any], sizes: Sequence[int]
) -> tuple[int, str]:
    """(the largest of ascending `sizes` that fits on all processes, how that is known).

    On GPUs a batch is tried, elsewhere the formula decides. All processes call. Raises UserError
    where none fits.
    """
    strategy = trainer.strategy
    memory = process_memory(trainer)
    guess = predicted_batch(trainer, module, memory)
    if tries(strategy.root_device):
        if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy):
            raise UserError(
                "data.batch_size=auto tries batches on single GPUs and with ddp, not with "
                f"{type(strategy).__name__}; give a number"
            )
        with trial(trainer, module) as fits:
            own, how = largest_of(sizes, fits, guess), "tried on the device"
    else:
        own = largest_of(sizes, lambda size: size <= guess, guess)
        how = f"by formula in {memory / GIB:,.1f} GiB of memory"
    least = strategy.reduce(torch.tensor(own, device=strategy.root_device), reduce_op="min")
    if not int(least):
        raise UserError(
            f"data.batch_size=auto: not even a batch of {sizes[0]} fits into the "
            f"{max(memory, 0) / GIB:,.1f} GiB that a process may use; choose smaller images or a "
            "smaller model"
        )
    return int(least), how


def tries(device: torch.device) -> bool:
    """Whether running out of memory on the device is an error that can be caught."""
    return device.type == "cuda"


class Trial:
    """Whether a training step of a run fits on its device, tried on a copy of its module.

    Two steps with the run's loss, optimizer and precision, on random images; gradients stay from
    the first to the second, as when they are accumulated.
    """

    def __init__(self, trainer: Trainer, module: NetworkTraining[Any, Any]) -> None:
        self._trainer, self._module = trainer, module
        self._device = trainer.strategy.root_device
        self._copy: Any = None
        self._optimizer: Any = None
        self._held: torch.Tensor | None = None

    def __call__(self, size: int) -> bool:
        fitted = True
        try:
            self._step_twice(size)
        except torch.OutOfMemoryError:
            fitted = False
        # Here the error, which holds the tensors of its frames, is gone.
        if self._optimizer is None:
            self.clear()
        else:
            self._optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return fitted

    def clear(self) -> None:
        """Gives the memory of the copy back."""
        self._copy = self._optimizer = self._held = None
        gc.collect()
        torch.cuda.empty_cache()

    def _build(self) -> None:
        device, trainer = self._device, self._trainer
        copy: Any = deepcopy(self._module)
        copy.trainer = trainer
        copy.setup("fit")  # which loads a teacher
        copy = trainer.precision_plugin.convert_module(copy).to(device).train()
        teacher = getattr(copy, "teacher", None)
        if teacher is not None:
            teacher.to(device, next(copy.parameters()).dtype)
        held = _beside(trainer, copy)
        if device.type == "cuda":
            held += round(GPU_RESERVE * torch.cuda.get_device_properties(device).total_memory)
        self._held = torch.empty(held, dtype=torch.uint8, device=device)
        self._copy, self._optimizer = copy, copy.make_optimizer()

    def _step_twice(self, size: int) -> None:
        if self._copy is None:
            self._build()
        assert self._copy is not None
        config = self._copy.model.config
        height, width = config.size
        for _ in range(2):
            images = torch.randn(size, config.in_channels, height, width, device=self._device)
            indices = torch.arange(size, device=self._device)
            with self._trainer.precision_plugin.forward_context():
                loss = self._copy.training_loss((images, self._labels(size), indices))
            loss.backward()
            self._optimizer.step()

    def _labels(self, size: int) -> torch.Tensor:
        """The first class for each image: `b`, or `b k` with several labels per image."""
        labels = getattr(self._copy, "labels", None)
        if labels is not None and labels.multilabel:
            return torch.zeros(size, self._copy.num_classes, device=self._device)
        return torch.zeros(size, dtype=torch.long, device=self._device)


@contextmanager
def trial(trainer: Trainer, module: NetworkTraining[Any, Any]) -> Iterator[Trial]:
    """A Trial that leaves weights, random numbers and memory as they were."""
    device = trainer.strategy.root_device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        fits = Trial(trainer, module)
        try:
            yield fits
        finally:
            fits.clear()


def _trained(module: NetworkTraining[Any, Any]) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _beside(trainer: Trainer, module: NetworkTraining[Any, Any]) -> int:
    """Bytes of further copies of what is trained: the buckets of ddp, the first weights."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    averaged = any(isinstance(callback, FineTuneBySize) for callback in callbacks)
    return FLOAT * _trained(module) * (averaged + (trainer.world_size > 1))


@contextmanager
def naming_a_batch(trainer: Trainer, module: NetworkTraining[Any, Any], data: ImageData) -> Any:
    """Work of a fit: running out of memory in it is a UserError that names a batch that fits."""
    memory = process_memory(trainer) if trainer.strategy.root_device.type != "cuda" else None
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(_smaller(trainer, module, data, memory)) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator, of a GPU, of PyTorch on CPUs or of Python, has found no memory."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or "DefaultCPUAllocator" in str(error)


def _smaller(
    trainer: Trainer, module: NetworkTraining[Any, Any], data: ImageData, memory: int | None
) -> str:
    size, processes = data.batch_size, trainer.world_size
    whole = size * processes * trainer.accumulate_grad_batches
    there = process_memory(trainer) if memory is None else memory
    predicted = predicted_batch(trainer, module, there)
    smaller = [n for n in own_sizes(trainer, module, data) if n <= min(size // 2, predicted)]
    text = f"out of memory with batches of {size:,} images on each of {processes:,} processes"
    if processes == 1:
        text = f"out of memory with batches of {size:,} images"
    if not smaller:
        return f"{text}, and no smaller one would fit; choose smaller images or a smaller model"
    return (
        f"{text}; {smaller[-1]:,} would fit: {accumulating(smaller[-1], whole, processes)} (the "
        f"same {whole:,} images per step)"
    )


def accumulating(size: int, whole: int, processes: int) -> str:
    """The options for batches of `size` images with `whole` images per step."""
    number = whole // (size * processes)
    return f"--data.batch_size {size} --trainer.accumulate_grad_batches {number}"
