"""Seconds of calls that take turns.

Machines change their speed within a minute, by heat and by other programs; calls that take turns
meet the same machine, and their ratios, round by round, keep their meaning.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal, TypeVar

from vit.progress import Meter

if TYPE_CHECKING:
    import torch

Clock = Literal["wall", "cpu"]
"""Time that passed, or time that this process computed, of all its threads together: what a busy
machine leaves unchanged, but meaningless for a GPU."""
Call = Callable[[], object]
Key = TypeVar("Key", bound=Hashable)

SHORTEST = 0.05
"""Seconds that a turn lasts at least: a shorter call is repeated within it."""


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one value per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance from fastest to slowest round, as a share of the median."""
        return (max(self.values) - min(self.values)) / 2 / self.median

    def per_second(self, count: int) -> dict[str, float | int]:
        """`count` things per second, as median, min and max of n rounds: plain JSON types."""
        rates = [count / seconds for seconds in self.values]
        return {"median": median(rates), "min": min(rates), "max": max(rates), "n": len(rates)}

    def ratios(self, other: "Times") -> list[float]:
        """How many times the other's speed, round by round."""
        return [b / a for a, b in zip(self.values, other.values, strict=True)]

    def faster_than(self, other: "Times") -> float:
        """The middle of the rounds' ratios: 2.0 takes half of the other's time."""
        return median(self.ratios(other))


def num_turns(num_calls: int, rounds: int) -> int:
    """Turns of so many calls, which `in_turns` counts on its meter; the first round warms up."""
    return num_calls * (rounds + 1)


def in_turns(
    calls: Mapping[Key, Call],
    *,
    rounds: int,
    clock: Clock = "wall",
    shortest: float = SHORTEST,
    finish: Call = lambda: None,
    meter: Meter | None = None,
    name: str = "",
) -> dict[Key, Times]:
    """Times of all calls, each in its turn, `rounds` times after one that does not count.

    `finish` waits for a device that works on after a call has returned; see `finisher`. With
    `shortest` 0 a turn is one call, the one that does not count included. `name` precedes what the
    meter shows.
    """
    now = time.perf_counter if clock == "wall" else time.process_time

    def turn(call: Call, repeats: int) -> float:
        finish()
        start = now()
        for _ in range(repeats):
            call()
        finish()
        return (now() - start) / repeats

    def show(text: str, key: Key) -> None:
        if meter is not None:
            meter.show(f"{name}{text}: {key}")

    def advance() -> None:
        if meter is not None:
            meter.advance()

    repeats, values = dict.fromkeys(calls, 1), {key: [] for key in calls}
    for key, call in calls.items():
        show("warming up", key)
        turn(call, 1)  # which may compile, and choose kernels
        if shortest:
            repeats[key] = max(1, round(shortest / max(turn(call, 1), 1e-9)))
        advance()
    for i in range(rounds):
        for key, call in calls.items():
            show(f"round {i + 1}/{rounds}", key)
            values[key].append(turn(call, repeats[key]))
            advance()
    return {key: Times(tuple(seconds)) for key, seconds in values.items()}


def finisher(device: "torch.device") -> Call:
    """What waits for the device; nothing to wait for on a CPU."""
    import torch

    return torch.cuda.synchronize if device.type == "cuda" else lambda: None
