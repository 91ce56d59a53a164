"""The exception for user errors, helpers for its message, and ranges of numeric options."""

import math
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any
from unicodedata import east_asian_width

LONGEST_NAME = 100
"""Columns of a name that is compared with others or quoted whole."""
MESSAGE = 400
"""Columns of a library's message, which may repeat values of any length."""
# Longer than a typed path; both ends of a longer value are enough to recognise it.
_OVERLONG = re.compile(r"\S{400,}")


class UserError(ValueError):
    """One line with the problem, the value, and the remedy. The CLI exits with status 2.

    Control characters are escaped, and a value of hundreds of characters is shortened.
    """

    def __init__(self, message: str = "") -> None:
        text = printable(of_worker(message))
        super().__init__(_OVERLONG.sub(lambda value: shorten(value[0], 200), text))


def of_worker(message: str) -> str:
    """The message; that of an exception which DataLoader has made of a worker's traceback."""
    if not message.startswith("Caught "):
        return message
    return message.strip().splitlines()[-1].partition(": ")[2]


def user_error_in(error: BaseException) -> UserError | None:
    """The first UserError among the error and its causes, or None."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, UserError):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return cause


def needed(library: str, extra: str) -> Any:
    """A library of an extra of this package. UserError if it is not installed."""
    if extra == "openvino":  # its converter and NNCF would report every use to a server
        sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        message = f"{error.name} is not installed: pip install 'vitkit[{extra}]'"
        raise UserError(message) from error


def printable(text: str) -> str:
    """The text with a line break as '\\n', and likewise for all that is not printable."""
    if text.isprintable():
        return text
    letters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(letters)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """'; did you mean 'x'?' for the names closest to `name`, or an empty string."""
    if len(name) > LONGEST_NAME:  # the comparison takes the product of the lengths
        return ""
    near = get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def no_folder(path: str) -> UserError:
    """For a folder or file of data that does not exist, with the nearest names beside it."""
    parent, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    siblings = os.listdir(parent) if os.path.isdir(parent) else []
    return UserError(f"data folder {path} does not exist{did_you_mean(name, siblings)}")


def some_of(names: Iterable[str], most: int = 5, separator: str = ", ") -> str:
    """`a, b and 7 more`: the first `most` names and the number of the others."""
    names = list(names)
    left_out = len(names) - most
    shown = separator.join(names[:most])
    return f"{shown} and {left_out:,} more" if left_out > 0 else shown


def shorten(value: Any, most: int = 60) -> str:
    """The value as text of at most `most` columns; a longer one loses its middle."""
    try:
        text = str(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits; deeply nested lists
        return "(a value too long to show)"
    if len(text) <= most and columns(text) <= most:
        return text
    head, tail = text[:most], text[-most:]
    while columns(head) > (most - 1) - (most - 1) // 2:
        head = head[:-1]
    while columns(tail) > (most - 1) // 2:
        tail = tail[1:]
    return f"{head.rstrip()}…{tail.lstrip()}"


def columns(text: str) -> int:
    """Width of the text in character cells; Chinese, Japanese and Korean characters take two."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


@dataclass(frozen=True, kw_only=True)
class Range:
    """Finite numbers from `low` to `high`; NaN and infinities are in no range."""

    low: float = -math.inf
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False
    """An open end is outside."""

    def holds(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        # An integer too large for a float is finite, but math.isfinite cannot convert it.
        return above and below and (isinstance(value, int) or math.isfinite(value))

    def __str__(self) -> str:
        """Such as "at least 1"."""
        if math.isinf(self.high):
            low = f"{'more than' if self.low_open else 'at least'} {self.low:.15g}"
            return "a finite number" if math.isinf(self.low) else low
        left, right = "[("[self.low_open], "])"[self.high_open]
        return f"in {left}{self.low:.15g}, {self.high:.15g}{right}"


FINITE = Range()
NOT_NEGATIVE = Range(low=0)
POSITIVE = Range(low=0, low_open=True)
SHARE = Range(low=0, high=1)
BELOW_ONE = Range(low=0, high=1, high_open=True)
INSIDE_ONE = Range(low=0, high=1, low_open=True, high_open=True)


def check_range(name: str, value: Any, allowed: Range) -> None:
    """Raises UserError with name, value and range unless `value` is a number in `allowed`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not allowed.holds(value):
        raise UserError(f"{name}={shorten(value)} must be {allowed}")
