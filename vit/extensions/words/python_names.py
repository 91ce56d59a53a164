"""Names and keywords of other packages in Python -> ours, by names.csv."""

import csv
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vit.errors import UserError


class Name(NamedTuple):
    """Row of names.csv."""

    package: str
    owner: str
    """`vit` or a class, without the attributes; or a function, with (), without the keywords."""
    names: str
    """Separated by |."""
    ours: str
    """What to type; "" if nothing is needed."""
    same: str
    """yes: the keyword of that name, whose values are ours."""
    note: str

    @property
    def is_attribute(self) -> bool:
        """False for a keyword."""
        return not self.owner.endswith("()")

    @property
    def answer(self) -> str:
        """Our words in one line."""
        note = f"{self.ours and '; '}{self.note}" if self.note else ""
        return (f"type {self.ours}" if self.ours else "") + note


@cache
def names() -> list[Name]:
    """All rows, in order."""
    with Path(__file__).with_name("names.csv").open(encoding="utf-8", newline="") as file:
        return [Name(**row) for row in csv.DictReader(file)]


@cache
def _rows() -> dict[tuple[str, str], Name]:
    """(Owner, name) -> its row."""
    return {(row.owner, name): row for row in names() for name in row.names.split("|")}


def in_our_words(typed: list[str]) -> list[str] | None:
    """An owner and its names in our words; None if none of them is another package's.

    Raises UserError with what to type for one that is not the same here.
    """
    owner, *theirs = typed
    meant = [_rows().get((owner, name)) for name in theirs]
    for name, row in zip(theirs, meant, strict=True):
        if row is not None and not row.same:
            raise UserError(row.answer if row.is_attribute else f"{name}=: {row.answer}")
    if not any(meant):
        return None
    ours = [name if row is None else row.ours for name, row in zip(theirs, meant, strict=True)]
    for name in ours:
        if ours.count(name) > 1:
            typed = [other for other, each in zip(theirs, ours, strict=True) if each == name]
            raise UserError(f"{' and '.join(typed)} are one option; give one")
    return [owner, *ours]
