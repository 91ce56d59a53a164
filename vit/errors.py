"""The exception for user errors, and helpers for its message."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

# Longer than a typed path; both ends of a longer value are enough to recognise it.
_OVERLONG = re.compile(r"\S{400,}")


class UserError(ValueError):
    """One line with the problem, the value, and the remedy. The CLI exits with status 2.

    Values come from files and file names, so characters that would break the line or control a
    terminal are escaped, and a value of hundreds of characters is shortened.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_OVERLONG.sub(_cut, printable(message)))


def _cut(value: re.Match[str]) -> str:
    text = value[0]
    return f"{text[:100]}...({len(text) - 200:,} more characters)...{text[-100:]}"


def printable(text: str) -> str:
    """The text with a line break as '\\n', and likewise for all that is not printable.

    That includes control characters, direction marks, and bytes of a file name that are not UTF-8.
    """
    if text.isprintable():
        return text
    letters = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(letters)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'; did you mean 'x'?' for the known names closest to `name`, or an empty string."""
    near = get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""


def some_of(names: Iterable[str], most: int, separator: str = ", ") -> str:
    """`a, b and 7 more`: the first `most` names and the number of the others."""
    names = list(names)
    left_out = len(names) - most
    shown = separator.join(names[:most])
    return f"{shown} and {left_out:,} more" if left_out > 0 else shown
