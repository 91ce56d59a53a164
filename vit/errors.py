"""The exception for user errors, helpers for its message, and ranges of numeric options."""

import math
import os
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from numbers import Real
from types import UnionType
from typing import Any, NamedTuple, get_args

MESSAGE = 400
"""Most characters of a library's message, which may repeat values of any length."""


class UserError(ValueError):
    """A user's mistake in one line: the problem, the value, the remedy. `vit` exits with status 2.

    Control characters are escaped.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(of_worker(message)))


def of_worker(message: str) -> str:
    """The message; for an error in a DataLoader worker, the last line of its traceback."""
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
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: pip install 'vitkit[{extra}]'") from error


def printable(text: str) -> str:
    """The text with a line break as '\\n', and likewise for all that is not printable."""
    letters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(letters)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """'; did you mean 'x'?' for the names closest to `name`, or an empty string."""
    near = get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def did_you_mean_beside(path: str) -> str:
    """A hint as by `did_you_mean`, from the names in the folder of a path that does not exist."""
    path = os.path.abspath(os.path.expanduser(path))
    parent, name = os.path.split(path)
    missing = os.path.isdir(parent) and not os.path.exists(path)
    return did_you_mean(name, os.listdir(parent)) if missing else ""


def some_of(names: Iterable[str], most: int = 5, separator: str = ", ") -> str:
    """`a, b and 7 more`: the first `most` names and the number of the others."""
    names = list(names)
    left_out = len(names) - most
    shown = separator.join(names[:most])
    return f"{shown} and {left_out:,} more" if left_out > 0 else shown


def shorten(value: object, most: int = 60) -> str:
    """The value as text of at most `most` characters; a longer one loses its middle."""
    text, half = str(value), (most - 1) // 2
    if len(text) <= most:
        return text
    return f"{text[: most - 1 - half].rstrip()}…{text[-half:].lstrip()}"


class Range(NamedTuple):
    """A range of finite numbers, in words and as a test."""

    text: str
    holds: Callable[[float], bool]


FINITE = Range("a finite number", math.isfinite)
NOT_NEGATIVE = Range("at least 0", lambda value: value >= 0)
POSITIVE = Range("more than 0", lambda value: value > 0)
AT_LEAST_ONE = Range("at least 1", lambda value: value >= 1)
SHARE = Range("in [0, 1]", lambda value: 0 <= value <= 1)
BELOW_ONE = Range("in [0, 1)", lambda value: 0 <= value < 1)
ABOVE_ZERO = Range("in (0, 1]", lambda value: 0 < value <= 1)


def check_range(name: str, value: object, allowed: Range) -> None:
    """Raises UserError with name, value and range unless `value` is finite and in `allowed`."""
    number = isinstance(value, Real) and not isinstance(value, bool)  # NumPy's numbers are Real
    if not number or not math.isfinite(value) or not allowed.holds(value):  # pyright: ignore
        raise UserError(f"{name}={shorten(value)} must be {allowed.text}")


_WORDS = {
    dict: "a mapping", list: "a list", str: "text", int: "a whole number", float: "a number",
    bool: "true or false", type(None): "null",
}  # fmt: skip


def check_types(source: object, values: object, /, **types: type | UnionType) -> None:
    """Raises UserError unless `values`, read from `source`, maps each name to its type."""
    if not isinstance(values, dict):
        raise UserError(f"{source}: {shorten(values)} is not a mapping")
    for name, kind in types.items():
        if not isinstance(value := values.get(name), kind):
            words = " or ".join(_WORDS.get(each, str(each)) for each in get_args(kind) or (kind,))
            raise UserError(f"{source}: {name}={shorten(value)} is not {words}")
