"""Images listed in a CSV file with the columns path, label and, optionally, split.

path,label,split     path,label             path,label,label
a/1.jpg,cat,train    a/1.jpg,cat|indoors    a/1.jpg,cat,indoors
a/2.jpg,dog,val      a/2.jpg,dog            a/2.jpg,dog,
"""

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vit.data.cut import complete
from vit.data.groups import unused_groups
from vit.data.scan import similar_file
from vit.data.settings import ModelClasses, Reading
from vit.data.sources import (
    SPLIT_WORDS,
    SPLITS,
    ImageSet,
    PathList,
    SplitName,
    Splits,
    all_of_one,
    check_classes,
    class_order,
    missing_files,
)
from vit.errors import UserError, shorten, some_of
from vit.label_tree import node_path

SUFFIXES = (".csv", ".tsv")
SEPARATOR = "|"
"""Stands between the labels of one image, unless label_separator is given."""
Cell = str | tuple[str, ...]
"""Text without outer blanks; several labels are a tuple."""


def load_manifest(listing: "Listing") -> Splits:
    """The splits that a file lists; relative paths are relative to its folder.

    An image has several labels if its cell holds `a|b` or is a list, or if the label column is
    repeated. A separator takes the place of `|`, and says that images have several labels. The
    labels of the whole set are then rows of zeros and ones, and an empty cell is an image without
    any. The classes are those of train, in natural order; splits are cut as in `load_folder`. In a
    tree labels are paths.

    Raises UserError if the file cannot be read, a column is missing, a row is incomplete or
    doubled, a file does not exist, a split is unknown, val or test has a label that train lacks, or
    no label has the separator.
    """
    reading, model = listing.reading, listing.reading.model
    if model is not None:
        several = bool(model.names) and (model.multilabel or listing.multilabel)
        model = replace(model, multilabel=several)
        split = max(listing.present, key=SPLITS.index)
        name = split if listing.has_splits else "test"
        return all_of_one(listing.images(split, model), model, name)
    if "train" not in listing.present:
        raise UserError(f"{listing.path} has no rows of split train")
    if reading.labelled and reading.separator is not None and not listing.separated:
        separator = f"data.label_separator={reading.separator!r}"
        raise UserError(f"{separator} occurs in no label of {listing.path}; leave it out")
    classes = listing.classes() if reading.labelled else []
    model = ModelClasses(names=classes, multilabel=listing.multilabel)
    sets: Any = {name: listing.images(name, model) for name in listing.present}
    keys, notes = listing.names.select(listing.rows_of("train")), listing.notes
    if reading.separator is None and not reading.tree:
        notes = notes + _joined_labels(classes, listing.path)
    return complete(classes, sets, keys, reading, where=listing.path, notes=notes)


def _joined_labels(classes: Sequence[str], path: str) -> list[str]:
    """A note if the classes look like several labels that are not separated."""
    for mark, share in ((";", 0.5), (",", 0.9), ("/", 0.9)):  # ImageNet's names have commas
        joined = [name for name in classes if mark in name]
        if joined and len(joined) >= share * len(classes):
            return [
                f"{path}: {len(joined):,} of {len(classes):,} classes contain {mark!r}, such as "
                f"{shorten(joined[0])!r}; if that is several labels, add --data.label_separator "
                f"'{mark}'{'; if it is a tree, --data.labels tree' if mark == '/' else ''}"
            ]
    return []


class Table:
    """A CSV file of rows with a `header`, the names of the columns without outer blanks.

    UserError for a file that cannot be read, or is not of its format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self.folder = os.path.dirname(path)
        """Where relative paths start."""
        self.header = [name.strip() for name in next(_csv_rows(path), (0, []))[1]]

    def place(self, number: int) -> str:
        """A row in a message."""
        return f"{self.path} row {number}"

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        """The number of each row for messages, and its cells in these columns.

        The number is that of the last line of the row. Raises UserError when a mistake in the file
        is reached.
        """
        rows = _csv_rows(self.path)
        next(rows, None)
        for number, row in rows:
            if len(row) < len(self.header):
                count = f"{len(row)} of {len(self.header)} columns"
                raise UserError(f"{self.path} row {number} has {count}")
            if any(map(str.strip, row[len(self.header) :])):
                raise UserError(f"{self.path} row {number} has {_surplus(row, len(self.header))}")
            yield number, tuple(row[at].strip() for at in columns)


def _surplus(row: list[str], columns: int) -> str:
    """What a row is that has more cells than there are columns."""
    cell, number = shorten(",".join(row[-2:])), row[0].strip().isdigit()
    ways = f"put {cell!r} into quotes if it is one cell, or name one more column in the header"
    by_r = " (R's write.table: row.names = FALSE)" if number else ""  # its rows' names have no name
    return f"{len(row)} cells for {columns} columns: {ways}{by_r}"


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Numbers and cells of all rows with any text, from the header on."""
    line = 0
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets write semicolons in some languages.
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
            for row in reader:
                line = reader.line_num
                if any(map(str.strip, row)):
                    yield line, row
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        where = f"{path} is not CSV in UTF-8 in the row that begins in line {line + 1}"
        raise UserError(f"{where}: {error}; check its quotes and encoding") from error


class Listing:
    """The rows of a table, column by column: numbers, and one block of bytes with the paths.

    Attributes:
        names: n paths as they stand in the rows.
        numbers: int64 n, what messages call each row.
        splits: int8 n, index into `SPLITS`.
        cells: int32 n, index into `labels`: equal label cells share one entry.
        labels: The labels of each distinct label cell, each label once.
        columns: Names of the columns that are classes, in a file without a column of labels.
        has_splits: There is a column of splits.
        present: The splits that have rows.
        groups: n names, if there is a column of groups.
    """

    def __init__(self, table: Table, reading: Reading) -> None:
        self.table, self.path, self.folder = table, table.path, table.folder
        self.reading, self.separator = reading, reading.separator or SEPARATOR
        self.separated = False
        """A label cell has the separator."""
        self.notes: list[str] = []
        self.columns: list[str] = []
        self.labels: list[tuple[str, ...]] = []
        header = reading.columns.roles(self.table.header)
        self.has_splits = "split" in header
        label_at = self._label_columns(header) if reading.has_classes else []
        grouped = reading.columns.group is not None and reading.model is None
        if grouped and "group" not in header:
            raise self._lacks("group")
        self.groups: list[str] | None = [] if grouped else None
        columns = dict(zip(self.table.header, header, strict=True))
        self.notes += [] if grouped else unused_groups(self.path, columns, self.columns)
        arrays = array("q"), array("b"), array("i")
        self.names = PathList(self._read(header, label_at, *arrays))
        if not len(self.names):
            raise UserError(f"{self.path} has a header but no rows")
        self.numbers, self.splits, self.cells = (np.frombuffer(a, a.typecode) for a in arrays)
        self.multilabel = any(len(labels) > 1 for labels in self.labels)
        self.multilabel |= self._has_several(label_at)
        self.present: list[SplitName] = [SPLITS[kind] for kind in np.unique(self.splits)]

    def _label_columns(self, header: list[str]) -> list[int]:
        """The places of the columns with labels; `header` has the roles of all columns."""
        places = [at for at, name in enumerate(header) if name == "label"]
        if "path" in header and not places:
            raise self._lacks("label", "; nor has it columns of zeros and ones as classes")
        return places

    def _has_several(self, label_at: list[int]) -> bool:
        """Images may have several labels, also where none of them has."""
        return len(label_at) > 1 or bool(label_at and self.reading.separator is not None)

    def _lacks(self, role: str, hint: str = "") -> UserError:
        header, column = self.table.header, getattr(self.reading.columns, role)
        names = some_of(map(shorten, header), 20) or "no columns"
        found = f"{self.path} has no column {column!r}, but {names}{hint}"
        return UserError(f"{found} (--data.columns.{role} NAME)")

    def _read(
        self, header: list[str], cells_at: list[int], numbers: array, splits: array, cells: array
    ) -> Iterator[str]:
        """Yields the path of each row; appends its number, split and label cell to the arrays, and
        new label cells to `labels`."""
        if "path" not in header:
            raise self._lacks("path")
        split_at = [header.index("split")] if self.has_splits else []
        group_at = [] if self.groups is None else [header.index("group")]
        numbers_of: dict[tuple[Cell, ...], int] = {}
        files: set[int] = set()  # hashes, as paths would take the most memory
        for number, row in self.table.rows([header.index("path"), *split_at, *group_at, *cells_at]):
            name, split = str(row[0]), str(row[1]).lower() if split_at else "train"
            key = row[1 + len(split_at) + len(group_at) :]
            file = hash(os.path.normpath(os.path.join(self.folder, name)))
            if not name:
                raise self._mistake(number, "has no path")
            if split not in SPLIT_WORDS:
                names = ", ".join(SPLIT_WORDS)
                raise self._mistake(number, f"has split {shorten(row[1])!r}; known are {names}")
            if file in files:
                raise self._mistake(number, f"lists {name} again; list it with all its labels")
            if key not in numbers_of:
                numbers_of[key] = len(numbers_of)
                self.labels.append(self._labels(key))
            files.add(file)
            numbers.append(number)
            splits.append(SPLITS.index(SPLIT_WORDS[split]))
            cells.append(numbers_of[key])
            if self.groups is not None:
                self.groups.append(str(row[1 + len(split_at)]) or name)
            yield name

    def _labels(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        """The labels in the label cells of one row, each once; in a tree paths."""
        labels: list[str] = []
        for cell in cells:
            if isinstance(cell, str):
                self.separated |= self.separator in cell
                cell = cell.split(self.separator)
            labels += [part for part in map(str.strip, cell) if part]
        if self.reading.tree:
            labels = [self._node(label) for label in labels]
        return tuple(dict.fromkeys(labels))

    def _node(self, label: str) -> str:
        """The path of a label in a tree."""
        return node_path(label)

    def _mistake(self, number: int, what: str) -> UserError:
        return UserError(f"{self.table.place(number)} {what}")

    def rows_of(self, split: SplitName) -> np.ndarray:
        """Places of the rows of a split, ascending."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def classes(self) -> list[str]:
        """The classes of train; UserError if they cannot be trained on."""
        classes = self._trained()
        check_classes(classes, self.path)
        return classes

    def _trained(self) -> list[str]:
        """The labels in rows of train, in the order of their indices."""
        used = np.unique(self.cells[self.rows_of("train")]).tolist()
        classes = class_order(label for cell in used for label in self.labels[cell])
        if not classes:
            raise UserError(f"{self.path} has no labels in its train rows")
        return classes

    def images(self, split: SplitName, model: ModelClasses) -> ImageSet:
        """The images of a split, and their labels if `model` has classes."""
        rows = self.rows_of(split)
        paths = self.names.select(rows, root=self.folder)
        if missing := missing_files(paths):
            name, number = paths.name(missing[0]), int(self.numbers[rows[missing[0]]])
            what = f"names {name!r}, which is no file below {self.folder}"
            what += f" ({len(missing):,} are missing){similar_file(paths[missing[0]])}"
            raise self._mistake(number, what)
        groups = None if self.groups is None else PathList(self.groups[row] for row in rows)
        return ImageSet(paths, self.class_numbers(rows, model), paths.printable(), groups)

    def class_numbers(self, rows: np.ndarray, model: ModelClasses) -> np.ndarray:
        """Class numbers, or rows of zeros and ones; zeros without classes.

        UserError for a label that is no class.
        """
        classes, several = model.names, model.multilabel
        if not classes:
            return np.zeros(len(rows), dtype=np.int64)
        index = {name: number for number, name in enumerate(classes)}
        shape = (len(rows), len(classes)) if several else (len(rows),)
        labels = np.zeros(shape, dtype=np.float32 if several else np.int64)
        for at, cell in enumerate(self.cells[rows].tolist()):
            names = self.labels[cell]
            try:
                if several:
                    labels[at, [index[name] for name in names]] = 1
                else:
                    labels[at] = index[names[0]]
            except (KeyError, IndexError):
                what = "has no label"
                if unknown := [shorten(name) for name in names if name not in index]:
                    what = f"has label {unknown[0]!r}, which is no class of train or of the model"
                raise self._mistake(int(self.numbers[rows[at]]), what) from None
        return labels
