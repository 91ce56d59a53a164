"""Lists in files of Parquet, and with columns of zeros and ones, or of the parents in a tree.

path,cat,dog,indoors    path,label,parent
a/1.jpg,1,0,1           a/1.jpg,cat,pet
a/2.jpg,0,1,0           a/2.jpg,dog,pet

All are read as `vit.data.manifest` reads a CSV file with a column of labels. A label of Parquet
may be a list, of an image with several. A row of zeros is an image without any.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vit.data.manifest import SUFFIXES, Cell, Listing, Table
from vit.data.settings import Reading
from vit.errors import UserError, needed, shorten, some_of
from vit.extensions.sources.addresses import reaching
from vit.label_tree import node_path

_FLAGS = {"": False, "0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Cells of a column that is a class, in lower case."""


def listing_of(path: str, reading: Reading) -> Listing:
    """The rows of a file. UserError for a mistake in it."""
    table = Table(path) if path.lower().endswith(SUFFIXES) else ParquetTable(path)
    roles = reading.columns.roles(table.header)
    if not reading.has_classes:
        return Listing(table, reading)
    if "label" not in roles:
        return FlagListing(table, reading)
    return (ParentListing if reading.tree and "parent" in roles else Listing)(table, reading)


def is_wide(path: str) -> bool:
    """True if a CSV file has a column `parent`, or zeros and ones in its first row. UserError if
    it cannot be read."""
    table = Table(path)
    if "parent" in map(str.lower, table.header):
        return True
    _, row = next(table.rows(range(len(table.header))), (0, ()))
    return sum(_is_flag(cell) for cell in row) > 1


def _is_flag(cell: Cell) -> bool:
    return str(cell).lower() in _FLAGS


class ParquetTable(Table):
    """A file of Parquet. Rows are counted from 1."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self.folder = os.path.dirname(self.path)
        with open_parquet(self.path) as file:
            self._names: list[str] = file.schema_arrow.names
        self.header = [name.strip() for name in self._names]

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        names, number = [self._names[at] for at in columns], 0
        with open_parquet(self.path) as file:
            for batch in file.iter_batches(columns=names):
                cells = [batch.column(name).to_pylist() for name in names]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, tuple(map(_cell, row))


@contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """The open file at a path or address; UserError if it cannot be read."""
    needed("pyarrow", "parquet")
    from pyarrow import parquet

    try:
        # Not read_table, which makes columns of folder names such as split=val.
        with (
            reaching(path) as (files, place),
            files.open(place) as stream,
            parquet.ParquetFile(stream) as file,
        ):
            yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _cell(value: object) -> Cell:
    if isinstance(value, list):
        return tuple(map(str, map(_cell, value)))
    return "" if value is None or value != value else str(value).strip()


class FlagListing(Listing):
    """Rows of which several columns are classes, with a 1 for those of the image.

    UserError without such columns.
    """

    def _label_columns(self, header: list[str]) -> list[int]:
        if "path" not in header:
            return []
        roles = ["path", "split"] + ["group"] * (self.reading.columns.group is not None)
        others = [at for at, name in enumerate(header) if name not in roles]
        flags = dict.fromkeys(others, False)  # column -> it has a zero or a one
        for _, row in self.table.rows(others):
            for at, cell in zip(others, row, strict=True):
                if at in flags and not _is_flag(cell):
                    del flags[at]
                elif at in flags and cell:
                    flags[at] = True
        places = [at for at, filled in flags.items() if filled]
        if len(places) < 2:
            raise self._lacks("label", "; nor has it columns of zeros and ones as classes")
        self.columns = [self.table.header[at] for at in places]
        note = f"its {len(places):,} columns of zeros and ones are the classes"
        left_out = [self.table.header[at] for at in others if at not in places]
        rest = f"; other columns are left out: {some_of(left_out)}" if left_out else ""
        self.notes.append(f"{self.path}: {note}: {some_of(self.columns)}{rest}")
        return places

    def _has_several(self, label_at: list[int]) -> bool:
        return not all(self.labels)

    def _labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        pairs = zip(self.columns, cells, strict=True)
        return tuple(name for name, cell in pairs if _FLAGS[str(cell).lower()])

    def _trained(self) -> list[str]:
        classes = super()._trained()
        for name in self.columns:
            if name not in classes:
                remedy = "remove the column, or add images of the class"
                raise UserError(f"{self.path}: column {name!r} has a 1 in no train row; {remedy}")
        return classes


class ParentListing(Listing):
    """Rows of a tree, whose labels are below the name or path in a column `parent`.

    UserError for a label with two parents, or a parent that is a label.
    """

    def __init__(self, table: Table, reading: Reading) -> None:
        self._parent, self._parents = "", dict[str, str]()
        """Of the row that is read, and of each label."""
        super().__init__(table, reading)
        for label, parent in self._parents.items():
            for name in self._parents.keys() & set(node_path(parent).split("/")):
                below = f"the parent of {shorten(label)!r}; a label has no others below it"
                raise UserError(f"{self.path} has {shorten(name)!r} as a label and as {below}")

    def _label_columns(self, header: list[str]) -> list[int]:
        return [*super()._label_columns(header), header.index("parent")]

    def _has_several(self, label_at: list[int]) -> bool:
        return super()._has_several(label_at[:-1])

    def _labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        self._parent = str(cells[-1])
        return super()._labels(cells[:-1])

    def _node(self, label: str) -> str:
        before = self._parents.setdefault(label, self._parent)
        if before != self._parent:
            parents = f"{shorten(before)!r} and {shorten(self._parent)!r}"
            problem = f"{self.path} has the label {shorten(label)!r} with parents {parents}"
            raise UserError(f"{problem}; give one, or paths as labels")
        return node_path(f"{self._parent}/{label}")
