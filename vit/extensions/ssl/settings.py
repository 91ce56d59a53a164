"""Groups of arguments of the task dino: its heads, its teacher, and the pace of its parts."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from vit.errors import ABOVE_ZERO, AT_LEAST_ONE, BELOW_ONE, POSITIVE, SHARE, Range, check_range
from vit.preprocessing import check_choice

Centring = Literal["centre", "sinkhorn"]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Heads of class tokens and of masked patches."""

    prototypes: int = 65_536
    """Logits of a head."""
    hidden: int = 2048
    """Width of its two layers inside."""
    bottleneck: int = 256
    """Width of the space of the prototypes."""
    separate: bool = False
    """Gives masked patches a head of their own."""

    def __post_init__(self) -> None:
        _check(self, "heads", AT_LEAST_ONE, "prototypes", "hidden", "bottleneck")


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The running average of the student, and the sharpness of its answers."""

    momentum: float = 0.992
    """Weight of the old average at the first step; it rises to 1 by half a cosine."""
    first_temperature: float = 0.04
    """Of the softmax at the first step."""
    temperature: float = 0.07
    """The same after a linear warm-up."""
    warmup: float = 0.3
    """Share of the run that this warm-up takes."""
    student_temperature: float = 0.1
    centring: Centring = "centre"
    """centre subtracts the mean of the logits, a running average; sinkhorn balances the prototypes
    within each step by three rounds of Sinkhorn-Knopp."""

    def __post_init__(self) -> None:
        _check(self, "teacher", BELOW_ONE, "momentum")
        _check(self, "teacher", SHARE, "warmup")
        _check(self, "teacher", POSITIVE, "first_temperature", "temperature", "student_temperature")
        check_choice("model.teacher.centring", self.centring, get_args(Centring))

    def momentum_at(self, step: int, total: int) -> float:
        """The weight at an update, from 0."""
        return _half_cosine(self.momentum, 1.0, step / total)

    def temperature_at(self, step: int, total: int) -> float:
        """The temperature at a step, from 0."""
        share = min(step / (self.warmup * total), 1.0) if self.warmup else 1.0
        return self.first_temperature + (self.temperature - self.first_temperature) * share


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Rates of the parts of the student, and the shares of the run in which some of them wait."""

    layer_decay: float = 0.9
    """Factor on the learning rate from each layer to the one below it."""
    patch_embed: float = 0.2
    """Factor on the rate of the patch embedding."""
    heads: float = 1.0
    """Factor on the rate of the heads."""
    heads_alone: float = 0.0
    """Share of the run in which the heads alone learn."""
    last_layer: float = 0.01
    """Share of the run in which the prototypes do not learn."""
    final_decay: float | None = None
    """Weight decay at the end, to which that of the optimizer moves by half a cosine."""

    def __post_init__(self) -> None:
        _check(self, "pace", ABOVE_ZERO, "layer_decay", "patch_embed")
        _check(self, "pace", POSITIVE, "heads")
        _check(self, "pace", BELOW_ONE, "heads_alone", "last_layer")

    def decay_at(self, first: float, step: int, total: int) -> float:
        """The weight decay at a step, from 0."""
        last = first if self.final_decay is None else self.final_decay
        return _half_cosine(first, last, step / total)


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


def _check(options: object, group: str, allowed: Range, *names: str) -> None:
    for name in names:
        check_range(f"model.{group}.{name}", getattr(options, name), allowed)
