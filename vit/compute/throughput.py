"""Images a second: measured, model against model in turns, so that all meet the same machine.

A training step is forward pass, loss, backward pass and fused AdamW on random images that are on
the device already: what the model costs, without reading and augmenting images.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from vit.compute.candidate import Candidate
from vit.compute.memory import kept_bytes, training_loss
from vit.compute.units import PRECISIONS

if TYPE_CHECKING:
    import torch

Step = Callable[[], object]

SHORTEST = 0.2
"""Seconds that a repetition on a GPU lasts at least: steps are queued faster than they are run."""
REPETITIONS = 5


@dataclass(kw_only=True)
class Rate:
    """Images a second, one value a repetition."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle repetition."""
        return median(self.values)

    def to_dict(self) -> dict[str, float | int]:
        """Plain JSON types."""
        low, high = min(self.values), max(self.values)
        return {"median": self.median, "min": low, "max": high, "n": len(self.values)}


@dataclass(kw_only=True)
class Subject:
    """A model to be measured, and what came of it."""

    model: Candidate
    batch_size: int
    inference: Rate = field(default_factory=Rate)
    training: Rate = field(default_factory=Rate)
    kept: int = 0
    """Bytes per image that the forward pass kept for the backward pass."""
    peak: int = 0
    """Bytes at the worst moment of a training step; 0 where the device does not tell."""


def measure(
    subjects: Sequence[Subject],
    device: "torch.device",
    precision: str,
    *,
    repetitions: int = REPETITIONS,
    report: Callable[[str], object] = lambda line: None,
) -> None:
    """Fills in each subject's rates, bytes kept and peak. `report` is told what is going on.

    Every model stays on the device throughout. Repetition by repetition, all models take their
    turn, inference and training; the first round warms up and does not count.
    """
    steps = []
    for subject in subjects:
        report(f"building {subject.model.name}")
        steps.append(_prepare(subject, device, precision))
    rounds = [[1, 1] for _ in subjects]
    for repetition in range(-1, repetitions):
        for i, subject in enumerate(subjects):
            turn = "warming up" if repetition < 0 else f"repetition {repetition + 1}/{repetitions}"
            report(f"{turn}: {subject.model.name} at {subject.model.image_size[0]} px")
            for j, step in enumerate(steps[i]):
                seconds = _timed(step, rounds[i][j], device)
                if repetition < 0:
                    # The first call may have compiled and chosen kernels: the second tells.
                    again = _timed(step, 1, device)
                    if device.type == "cuda":
                        rounds[i][j] = max(1, round(SHORTEST / again))
                    continue
                rate = subject.inference if j == 0 else subject.training
                rate.values.append(rounds[i][j] * subject.batch_size / seconds)


def _prepare(subject: Subject, device: "torch.device", precision: str) -> tuple[Step, Step]:
    """The inference step and the training step; bytes kept and peak are found on the way."""
    import torch

    model = subject.model.build().to(device)
    b, (height, width) = subject.batch_size, subject.model.image_size
    images = torch.randn(b, subject.model.channels, height, width, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    mixed = PRECISIONS[precision].weights > 0

    def infer() -> None:
        model.eval()
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, mixed):
            model(images)

    def train() -> None:
        model.train()
        training_loss(model, images, precision).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    model.train()
    counts = [
        kept_bytes(partial(training_loss, model, images[:n].clone(), precision), model)
        for n in sorted({1, b})
    ]
    # What does not grow with the batch, such as standardised kernels, falls out of the difference.
    subject.kept = (counts[-1] - counts[0]) // (b - 1) if b > 1 else counts[0]
    if device.type == "cuda":
        train()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        train()
        own = sum(p.numel() * p.element_size() for p in model.parameters()) * 3  # with two moments
        subject.peak = torch.cuda.max_memory_allocated(device) - before + own
    return infer, train


def _timed(step: Step, times: int, device: "torch.device") -> float:
    """Seconds for `times` steps in a row, until the device has finished."""
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        step()
    _synchronize(device)
    return time.perf_counter() - start


def _synchronize(device: "torch.device") -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def largest(fits: Callable[[int], bool], start: int) -> int:
    """The largest batch that `fits`, to one part in 32, searched from a prediction; 0 for none."""
    low, high = 0, max(1, start)
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def trainable(subject: Subject, device: "torch.device", precision: str) -> Callable[[int], bool]:
    """Whether a training step with so many images goes through on a CUDA device."""
    import torch

    model = subject.model.build().to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def fits(batch_size: int) -> bool:
        shape: Any = (batch_size, subject.model.channels, *subject.model.image_size)
        try:
            for _ in range(2):  # the optimizer's state is there from the second on
                training_loss(model, torch.randn(shape, device=device), precision).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        except torch.OutOfMemoryError:
            return False
        finally:
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
        return True

    return fits
