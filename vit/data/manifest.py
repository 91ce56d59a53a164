"""Images listed in a CSV or Parquet file with the columns path, label and, optionally, split.

path,label,split     path,label             path,label,label        path,cat,dog,indoors
a/1.jpg,cat,train    a/1.jpg,cat|indoors    a/1.jpg,cat,indoors     a/1.jpg,1,0,1
a/2.jpg,dog,val      a/2.jpg,dog            a/2.jpg,dog,            a/2.jpg,0,1,0

Classes in a tree:
path,label              path,label,parent
a/1.jpg,pet/cat         a/1.jpg,cat,pet
"""

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from vit.data.addresses import reaching
from vit.data.cut import complete
from vit.data.groups import unused_groups
from vit.data.options import ModelClasses, Reading
from vit.data.scan import similar_file
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
from vit.errors import UserError, needed, shorten, some_of
from vit.label_tree import node_path

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
SEPARATOR = "|"
"""Stands between the labels of one image, unless label_separator is given."""
_FLAGS = {"": False, "0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Cells of a column that is a class, in lower case."""
Cell = str | tuple[str, ...]
"""Text without outer blanks; a list of Parquet is a tuple."""


def load_manifest(path: str | os.PathLike[str], reading: Reading) -> Splits:
    """The splits that a manifest lists; relative paths are relative to the manifest's folder.

    An image has several labels if its cell holds `a|b` or a Parquet list, if the label column is
    repeated, or if it has a 1 in several columns of classes. A separator takes the place of `|`,
    and says that images have several labels. The labels of the whole set are then rows of zeros
    and ones, and an empty cell is an image without any. The classes are those of train, in natural
    order; splits are cut as in `load_folder`. In a tree labels are paths, below the name or path
    in a column `parent`, if there is one.

    Raises UserError if the file cannot be read, a column is missing, a row is incomplete or
    doubled, a file does not exist, a split is unknown, val or test has a label that train lacks, a
    column of a class has no 1 in train, no label has the separator, or a parent is a label.
    """
    listing, model = Listing(Table(path), reading), reading.model
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
    """A file of rows with a `header`, the names of the columns without outer blanks.

    UserError for a file that cannot be read, or is not of its format.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self.folder = os.path.dirname(path)
        """Where relative paths start."""
        self._is_parquet = path.lower().endswith((".parquet", ".pq"))
        if self._is_parquet:
            with open_parquet(path) as file:
                names: list[str] = file.schema_arrow.names
        else:
            names = next(_csv_rows(path), (0, []))[1]
        self._names = names
        self.header = [name.strip() for name in names]

    def place(self, number: int) -> str:
        """A row in a message."""
        return f"{self.path} row {number}"

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
        """The number of each row for messages, and its cells in these columns.

        Numbers start at 1: the last line of the row in a CSV file, rows of a Parquet file. Raises
        UserError when a mistake in the file is reached.
        """
        if self._is_parquet:
            yield from _parquet_rows(self.path, [self._names[at] for at in columns])
            return
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


def _parquet_rows(path: str, names: list[str]) -> Iterator[tuple[int, tuple[Cell, ...]]]:
    number = 0
    with open_parquet(path) as file:
        for batch in file.iter_batches(columns=names):
            columns = [batch.column(name).to_pylist() for name in names]
            for row in zip(*columns, strict=True):
                number += 1
                yield number, tuple(map(_cell, row))


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        return tuple(map(str, map(_cell, value)))
    return "" if value is None or value != value else str(value).strip()


class Listing:
    """The rows of a table, column by column: numbers, and one block of bytes with the paths.

    Attributes:
        names: n paths as they stand in the rows.
        numbers: int64 n, what messages call each row.
        splits: int8 n, index into `SPLITS`.
        cells: int32 n, index into `labels`: equal label cells share one entry.
        labels: The labels of each distinct label cell, each label once.
        columns: Names of the columns that are classes, if there is no column of labels.
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
        self._parents: dict[str, str] = {}  # of each label in a tree
        labelled, header = reading.has_classes, reading.columns.roles(self.table.header)
        self.has_splits = "split" in header
        label_at = [at for at, name in enumerate(header) if name == "label"] if labelled else []
        if labelled and "path" in header and not label_at:
            label_at = self._class_columns(header)
        self._parent_at = [header.index("parent")] if reading.tree and "parent" in header else []
        grouped = reading.columns.group is not None and reading.model is None
        if grouped and "group" not in header:
            raise self._lacks("group")
        self.groups: list[str] | None = [] if grouped else None
        columns = dict(zip(self.table.header, header, strict=True))
        self.notes += [] if grouped else unused_groups(self.path, columns, self.columns)
        arrays = array("q"), array("b"), array("i")
        self.names = PathList(self._read(header, [*label_at, *self._parent_at], *arrays))
        if not len(self.names):
            raise UserError(f"{self.path} has a header but no rows")
        self._check_parents()
        self.numbers, self.splits, self.cells = (np.frombuffer(a, a.typecode) for a in arrays)
        self.multilabel = any(len(labels) > 1 for labels in self.labels)
        if self.columns:
            self.multilabel |= not all(self.labels)
        else:
            self.multilabel |= len(label_at) > 1 or (labelled and reading.separator is not None)
        self.present: list[SplitName] = [SPLITS[kind] for kind in np.unique(self.splits)]

    def _class_columns(self, header: list[str]) -> list[int]:
        """The places of the columns of zeros and ones; sets `columns`."""
        roles = ["path", "split"] + ["group"] * (self.reading.columns.group is not None)
        others = [at for at, name in enumerate(header) if name not in roles]
        flags = dict.fromkeys(others, False)  # column -> it has a zero or a one
        for _, row in self.table.rows(others):
            for at, cell in zip(others, row, strict=True):
                if at in flags and str(cell).lower() not in _FLAGS:
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
        parent = str(cells[-1]) if self._parent_at else ""
        cells = cells[: len(cells) - len(self._parent_at)]
        if self.columns:
            pairs = zip(self.columns, cells, strict=True)
            return tuple(name for name, cell in pairs if _FLAGS[str(cell).lower()])
        labels: list[str] = []
        for cell in cells:
            if isinstance(cell, str):
                self.separated |= self.separator in cell
                cell = cell.split(self.separator)
            labels += [part for part in map(str.strip, cell) if part]
        if self.reading.tree:
            labels = [self._below(parent, label) for label in labels]
        return tuple(dict.fromkeys(labels))

    def _below(self, parent: str, label: str) -> str:
        """The path of a label; UserError if its parent was another before."""
        before = self._parents.setdefault(label, parent)
        if before != parent:
            parents = f"{shorten(before)!r} and {shorten(parent)!r}; give one, or paths as labels"
            raise UserError(f"{self.path} has the label {shorten(label)!r} with parents {parents}")
        return node_path(f"{parent}/{label}")

    def _check_parents(self) -> None:
        """UserError for a parent that is a label too, as each one in a loop."""
        for label, parent in self._parents.items():
            for name in self._parents.keys() & set(node_path(parent).split("/")):
                below = f"the parent of {shorten(label)!r}; a label has no others below it"
                raise UserError(f"{self.path} has {shorten(name)!r} as a label and as {below}")

    def _mistake(self, number: int, what: str) -> UserError:
        return UserError(f"{self.table.place(number)} {what}")

    def rows_of(self, split: SplitName) -> np.ndarray:
        """Places of the rows of a split, ascending."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def classes(self) -> list[str]:
        """The classes of train; UserError if they cannot be trained on."""
        used = np.unique(self.cells[self.rows_of("train")]).tolist()
        classes = class_order(label for cell in used for label in self.labels[cell])
        if not classes:
            raise UserError(f"{self.path} has no labels in its train rows")
        for name in self.columns:
            if name not in classes:
                remedy = "remove the column, or add images of the class"
                raise UserError(f"{self.path}: column {name!r} has a 1 in no train row; {remedy}")
        check_classes(classes, self.path)
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
