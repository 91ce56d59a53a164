"""Lists in Parquet, with groups of images, or with columns of zeros and ones or of parents.

path,cat,dog,indoors    path,label,parent    path,label,label     path,label,patient
a/1.jpg,1,0,1           a/1.jpg,cat,pet      a/1.jpg,cat,indoors  a/1.jpg,cat,17
a/2.jpg,0,1,0           a/2.jpg,dog,pet      a/2.jpg,dog,         a/2.jpg,dog,17

All are read as `vit.data.manifest` reads a CSV file with a column of labels. A label of Parquet
may be a list, of an image with several. A row of zeros is an image without any.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from vit.data.labelling import Labelled
from vit.data.manifest import SUFFIXES, Cell, Listing, Table
from vit.data.settings import Reading
from vit.data.sources import PathList, SplitName, Splits
from vit.errors import UserError, needed, shorten, some_of
from vit.extensions.sources.addresses import reaching
from vit.extensions.sources.groups import by_groups, divided_groups, unused_groups
from vit.label_tree import node_path

_FLAGS = {"": False, "0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Cells of a column that is a class, in lower case."""


def listing_of(path: str, reading: Reading) -> Listing:
    """The rows of a file. UserError for a mistake in it."""
    table = Table(path) if path.lower().endswith(SUFFIXES) else ParquetTable(path)
    roles = reading.columns.roles(table.header)
    unnamed = reading.columns.label == "label" or reading.model is not None
    if reading.has_classes and "label" not in roles and unnamed:
        return FlagListing(table, reading)
    if reading.has_classes and reading.tree and "parent" in roles:
        return ParentListing(table, reading)
    return WideListing(table, reading)


def is_wide(path: str) -> bool:
    """True if a CSV file has other columns than path, label and split, once each. UserError if it
    cannot be read."""
    roles = sorted(map(str.lower, Table(path).header))
    return roles not in (["label", "path"], ["label", "path", "split"])


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
        with reaching(path) as (files, place), files.open(place) as stream:
            with parquet.ParquetFile(stream) as file:
                yield file
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _cell(value: object) -> Cell:
    if isinstance(value, list):
        return tuple(map(str, map(_cell, value)))
    return "" if value is None or value != value else str(value).strip()


class WideListing(Listing):
    """Rows with any number of columns of labels, and with a column of groups if one is asked for.

    An empty cell is a group of its own.
    """

    def __init__(self, table: Table, reading: Reading) -> None:
        self._grouped = reading.columns.group is not None and reading.model is None
        self._groups: list[str] = []
        """The cell of each entry in `labels`."""
        super().__init__(table, reading)
        if self._grouped:
            self.divide = by_groups
        else:
            roles = dict(zip(table.header, self.roles, strict=True))
            self.notes += unused_groups(table.path, roles, self.classes)

    classes: Sequence[str] = ()
    """Columns that are classes."""

    def columns(self) -> list[int]:
        group = [self.place("group")] if self._grouped else []
        return [*group, *(self.label_columns() if self.reading.has_classes else [])]

    def label_columns(self) -> list[int]:
        """The places of the columns that decide an image's labels."""
        self.place("label")
        return [at for at, role in enumerate(self.roles) if role == "label"]

    def labels_in(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        if self._grouped:
            self._groups.append(str(cells[0]))
        return self.row_labels(cells[self._grouped :])

    def row_labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        """The labels in the columns of labels of one row."""
        return super().labels_in(cells)

    def has_several(self) -> bool:
        return super().has_several() or (self.roles.count("label") > 1 and self.reading.has_classes)

    def read(self) -> Splits:
        splits = super().read()
        if not self._grouped or (column := self.reading.columns.group) is None:
            return splits
        sets = [images.groups or () for images in splits.present().values()]
        return replace(splits, notes=splits.notes + divided_groups(self.table.path, column, sets))

    def part(self, split: SplitName) -> Labelled:
        part = super().part(split)
        if not self._grouped:
            return part
        pairs = zip(part.names, part.entries.tolist(), strict=True)
        return replace(part, groups=PathList(self._groups[at] or name for name, at in pairs))


class FlagListing(WideListing):
    """Rows of which several columns are classes, with a 1 for those of the image.

    UserError without such columns.
    """

    def label_columns(self) -> list[int]:
        roles = ["path", "split"] + ["group"] * (self.reading.columns.group is not None)
        others = [at for at, role in enumerate(self.roles) if role not in roles]
        flags = dict.fromkeys(others, False)  # column -> it has a zero or a one
        for _, row in self.table.rows(others):
            for at, cell in zip(others, row, strict=True):
                if at in flags and str(cell).lower() not in _FLAGS:
                    del flags[at]
                elif at in flags and cell:
                    flags[at] = True
        places = [at for at, filled in flags.items() if filled]
        if len(places) < 2:
            self.place("label")
        self.classes = [self.table.header[at] for at in places]
        note = f"its {len(places):,} columns of zeros and ones are the classes"
        left_out = [self.table.header[at] for at in others if at not in places]
        rest = f"; other columns are left out: {some_of(left_out)}" if left_out else ""
        self.notes.append(f"{self.table.path}: {note}: {some_of(self.classes)}{rest}")
        return places

    def has_several(self) -> bool:
        return super().has_several() or not all(self.labels)

    def row_labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        pairs = zip(self.classes, cells, strict=True)
        return tuple(name for name, cell in pairs if _FLAGS[str(cell).lower()])

    def part(self, split: SplitName) -> Labelled:
        part = super().part(split)
        if split == "train" and self.reading.model is None:
            used = part.class_names()
            for name in self.classes:
                if name not in used:
                    remedy = "remove the column, or add images of the class"
                    raise UserError(f"{part.where}: column {name!r} has a 1 in no row; {remedy}")
        return part


class ParentListing(WideListing):
    """Rows of a tree, whose labels are below the name or path in a column `parent`.

    UserError for a label with two parents, or a parent that is a label.
    """

    def __init__(self, table: Table, reading: Reading) -> None:
        self._parents = dict[str, str]()
        """The parent of each label."""
        super().__init__(table, reading)
        for label, parent in self._parents.items():
            for name in self._parents.keys() & set(node_path(parent).split("/")):
                below = f"the parent of {shorten(label)!r}; a label has no others below it"
                raise UserError(f"{table.path} has {shorten(name)!r} as a label and as {below}")

    def label_columns(self) -> list[int]:
        return [*super().label_columns(), self.roles.index("parent")]

    def row_labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        parent = str(cells[-1])
        labels = super().row_labels(cells[:-1])
        for label in labels:
            if (before := self._parents.setdefault(label, parent)) != parent:
                both = f"{shorten(before)!r} and {shorten(parent)!r}"
                text = f"{self.table.path} has the label {shorten(label)!r} with parents {both}"
                raise UserError(f"{text}; give one, or paths as labels")
        return tuple(dict.fromkeys(node_path(f"{parent}/{label}") for label in labels))
