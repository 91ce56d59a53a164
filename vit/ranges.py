"""Ranges of numeric options, for the command line and for constructors."""

import math
from dataclasses import dataclass
from typing import Any

from vit.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers from `low` to `high`; NaN and infinities are in no range."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    """Whether `low` itself is outside."""
    high_open: bool = False
    """Whether `high` itself is outside."""
    also: tuple[int, ...] = ()
    """Further values with a special meaning, such as -1 for "no limit"."""
    unit: str = ""

    def holds(self, value: float) -> bool:
        """Whether `value` is allowed."""
        if value in self.also:
            return True
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        # An integer too large for a float is finite, but math.isfinite cannot convert it.
        return above and below and (isinstance(value, int) or math.isfinite(value))

    def __str__(self) -> str:
        """Such as "at least 1 step, or -1"."""
        low, high = f"{self.low:.15g}", f"{self.high:.15g}"
        if math.isinf(self.low) and math.isinf(self.high):
            text = "a finite number"
        elif math.isinf(self.high):
            text = f"more than {low}" if self.low_open else f"at least {low}"
        else:
            text = (
                f"in {'(' if self.low_open else '['}{low}, {high}{')' if self.high_open else ']'}"
            )
        text += f" {self.unit}" if self.unit else ""
        return ", or ".join([text, *map(str, self.also)])


FINITE = Range()
NOT_NEGATIVE = Range(low=0)
POSITIVE = Range(low=0, low_open=True)
SHARE = Range(low=0, high=1)
BELOW_ONE = Range(low=0, high=1, high_open=True)


def check_range(name: str, value: Any, allowed: Range) -> None:
    """Raises UserError with name, value and range unless `value` is a number in `allowed`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not allowed.holds(value):
        raise UserError(f"{name}={shown(value)} must be {allowed}")


def shown(value: Any) -> str:
    """The value for a message, shortened if long."""
    try:
        text = str(value)
    except ValueError:  # an integer of more than 4300 digits
        return "(a number of thousands of digits)"
    return text if len(text) <= 60 else text[:57] + "..."
