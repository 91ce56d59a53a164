"""Classes that are columns of zeros and ones, in a table without a column of labels.

image   cat dog indoors             path   MEL NV
1.jpg   1   0   1                   1.jpg  1.0 0.0
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from vit.data.table import Row, listed, text_of
from vit.errors import UserError, did_you_mean, shorten, some_of

WORDS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What a cell may hold, in lower case. An empty cell is a no."""

_NEARLY_ALL = 0.9
"""Share of zeros and ones from which on another value is a mistake, and the column no other one."""


@dataclass
class _Column:
    """What the cells of a column hold."""

    flags: int = 0
    ones: int = 0
    others: int = 0
    first_other: tuple[int, str] | None = None
    """Number of the row and text."""

    def add(self, number: int, text: str) -> None:
        word = WORDS.get(text.lower())
        if word is not None:
            self.flags += 1
            self.ones += word
        elif text:
            self.others += 1
            self.first_other = self.first_other or (number, text)


@dataclass
class ClassColumns:
    """Which columns of a table are classes."""

    places: list[int]
    """Their indices."""
    notes: list[str] = field(default_factory=list)


def class_columns(
    path: str, header: list[str], rows: Iterable[Row], others: tuple[str, ...]
) -> ClassColumns:
    """The columns of `header` that hold nothing but zeros and ones, with at least one of each.

    `others` (lower case) are never classes. `path` names the table in messages.

    Raises:
        UserError: There are fewer than two, two have one name, or a column of zeros and ones has
            another value, too.
    """
    wanted = [at for at, name in enumerate(header) if name.lower() not in others]
    columns = {at: _Column() for at in wanted}
    for number, row in rows:
        for at in wanted:
            if at < len(row):
                columns[at].add(number, text_of(row[at]))
    for at, column in columns.items():
        if column.first_other and column.flags >= _NEARLY_ALL * (column.flags + column.others):
            number, text = column.first_other
            raise UserError(
                f"{path} row {number} has {shorten(text)!r} in column {header[at]!r}, whose other "
                "values are 0 and 1; a column of a class has nothing else"
            )
    places = [at for at, column in columns.items() if column.flags and not column.others]
    names = [header[at] for at in places]
    if len(places) < 2:
        lower = [name.lower() for name in header]
        raise UserError(
            f"{path} has columns {listed(lower)}, but none called 'label'"
            f"{did_you_mean('label', lower) or ', nor columns of zeros and ones as classes'}"
        )
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path} has {names.count(name)} columns {name!r}; keep one")
    note = f"{path}: its {len(names):,} columns of zeros and ones are the classes: "
    note += some_of(names)
    ignored = [header[at] for at in wanted if at not in places]
    if ignored:
        note += f"; other columns are left out: {some_of(ignored)}"
    return ClassColumns(places, [note])


def is_yes(text: str) -> bool:
    """Whether a cell of a class's column says that the image has the class."""
    return WORDS.get(text.lower(), False)
