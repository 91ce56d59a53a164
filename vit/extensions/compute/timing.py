"""Timing of alternating calls: forward passes, and training steps with AdamW, on random images.

Machines change their speed within a minute, because of heat and other programs: only ratios of
calls that alternate are meaningful.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vit.console import Meter

Clock = Literal["wall", "cpu"]
"""Wall-clock time, or CPU time of all threads of this process, which a busy machine does not change
but which is meaningless for a GPU."""
Call = Callable[[], object]
Step = Callable[[Tensor], object]
"""A call with a batch of images `b c h w`."""
Key = TypeVar("Key", bound=Hashable)

SHORTEST = 0.05
"""Minimum seconds per turn; a shorter call is repeated within it."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one value per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the range of the rounds, relative to the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median

    def ratios(self, other: "Times") -> list[float]:
        """Speed relative to `other`, per round."""
        return [b / a for a, b in zip(self.values, other.values, strict=True)]

    def faster_than(self, other: "Times") -> float:
        """Median ratio over rounds: 2.0 takes half of the other's time."""
        return median(self.ratios(other))


def in_turns(
    calls: Mapping[Key, Call],
    *,
    rounds: int,
    clock: Clock = "wall",
    shortest: float = SHORTEST,
    finish: Call = lambda: None,
    title: str | None = None,
) -> dict[Key, Times]:
    """Times of all calls, alternating for `rounds` rounds after a warm-up round.

    `shortest`: seconds per turn; 0 for one call per turn. `finish`: see `finisher`. `title` shows
    the progress.
    """
    now = time.perf_counter if clock == "wall" else time.process_time

    def turn(call: Call, repeats: int) -> float:
        finish()
        start = now()
        for _ in range(repeats):
            call()
        finish()
        return (now() - start) / repeats

    repeats, values = dict.fromkeys(calls, 1), {key: [] for key in calls}
    turns = [(i, key) for i in range(rounds + 1) for key in calls]
    with Meter(title, len(turns), "turns") if title else nullcontext() as meter:
        for i, key in turns:
            if meter is not None:
                meter.show(f"round {i}/{rounds}: {key}" if i else f"warming up: {key}")
            if i:
                values[key].append(turn(calls[key], repeats[key]))
            else:
                turn(calls[key], 1)  # may compile and choose kernels
                if shortest:
                    repeats[key] = max(1, round(shortest / max(turn(calls[key], 1), 1e-9)))
            if meter is not None:
                meter.advance()
    return {key: Times(tuple(seconds)) for key, seconds in values.items()}


def finisher(device: torch.device) -> Call:
    """A function that waits for the device; a no-op on a CPU."""
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


def training_loss(model: nn.Module, images: Tensor, precision: str) -> Tensor:
    """The loss on `images` (b c h w) with all labels 0, in fp32 or bf16 (mixed)."""
    labels = torch.zeros(len(images), dtype=torch.long, device=images.device)
    with torch.autocast(images.device.type, torch.bfloat16, precision == "bf16"):
        return torch.nn.functional.cross_entropy(model(images), labels)


def training(model: nn.Module, precision: str, optimizer: Optimizer | None = None) -> Step:
    """A training step in fp32 or bf16 (mixed), by default with fused AdamW.

    Batches of several sizes share its moments. Its small learning rate keeps weights finite.
    """
    chosen = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def step(images: Tensor) -> None:
        if not model.training:
            model.train()
        try:
            training_loss(model, images, precision).backward()
            chosen.step()
        finally:  # also after running out of memory
            chosen.zero_grad(set_to_none=True)

    return step


def inference(model: nn.Module, images: Tensor) -> Call:
    """A forward pass for the logits, in the dtype of the weights."""
    model.eval()
    images = images.to(next(model.parameters()).dtype)

    def call() -> object:
        with torch.inference_mode():
            return model(images)

    return call
