"""Images listed in a CSV file with the columns path, label and, optionally, split.

path,label,split     path,label
a/1.jpg,cat,train    a/1.jpg,cat|indoors
a/2.jpg,dog,val      a/2.jpg,dog
"""

import csv
import os
from array import array
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from vit.data.cut import Divide, by_class
from vit.data.labelling import Labelled, Readers, make_splits
from vit.data.scan import similar_file
from vit.data.settings import Reading
from vit.data.sources import SPLIT_WORDS, SPLITS, PathList, SplitName, Splits, missing_files
from vit.errors import UserError, shorten, some_of
from vit.label_tree import node_path

SUFFIXES = (".csv", ".tsv")
SEPARATOR = "|"
"""Stands between the labels of one image, unless label_separator is given."""
Cell = str | tuple[str, ...]
"""Text without outer blanks; a list of labels is a tuple."""


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
        """The number of the last line of each row, and its cells in these columns.

        Raises UserError at a mistake in the file.
        """
        rows, count = _csv_rows(self.path), len(self.header)
        next(rows, None)
        for number, row in rows:
            if len(row) < count:
                raise UserError(f"{self.place(number)} has {len(row)} of {count} columns")
            if any(map(str.strip, row[count:])):
                cell, by_r = shorten(",".join(row[-2:])), row[0].strip().isdigit()
                ways = f"put {cell!r} into quotes if it is one cell, or name all columns"
                ways += " (R's write.table: row.names = FALSE)" if by_r else ""
                cells = f"{len(row)} cells for {count} columns"
                raise UserError(f"{self.place(number)} has {cells}: {ways}")
            yield number, tuple(row[at].strip() for at in columns)


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
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not in UTF-8: {error}; save it as 'CSV UTF-8'") from error
    except csv.Error as error:
        where = f"{path} is not CSV in the row that begins in line {line + 1}"
        raise UserError(f"{where}: {error}; check its quotes") from error


class Listing:
    """The rows of a table, column by column: numbers, and one block of bytes with the paths.

    Relative paths are relative to the folder of the file. An image has several labels if its cell
    holds `a|b` or is a list. `Reading.separator` takes the place of `|`, and says that images have
    several labels, or none. In a tree labels are paths.

    Raises UserError if the file cannot be read, a column is missing, a row is incomplete or
    doubled, a split is unknown, or no label has the separator.

    Attributes:
        names: n paths as they stand in the rows.
        numbers: int64 n, what messages call each row.
        splits: int8 n, index into `SPLITS`.
        entries: int32 n, index into `labels`: equal cells of labels share one entry.
        labels: The labels of each distinct cell, each label once.
        multilabel: Images may have several labels.
    """

    divide: Divide = staticmethod(by_class)

    def __init__(self, table: Table, reading: Reading) -> None:
        self.table, self.reading = table, reading
        self.roles = reading.columns.roles(table.header)
        self.notes: list[str] = []
        self.labels: list[tuple[str, ...]] = []
        self.separated = False
        """A cell of labels has the separator."""
        arrays = array("q"), array("b"), array("i")
        self.names = PathList(self._read(*arrays))
        self.numbers, self.splits, self.entries = (np.frombuffer(a, a.typecode) for a in arrays)
        if not len(self.names):
            raise UserError(f"{table.path} has a header but no rows")
        if reading.separator and reading.labelled and not reading.model and not self.separated:
            separator = f"data.label_separator={reading.separator!r}"
            raise UserError(f"{separator} occurs in no label of {table.path}; leave it out")
        self.multilabel = self.has_several()

    def columns(self) -> list[int]:
        """The places of the columns that decide an image's labels."""
        if self.reading.columns.group is not None and self.reading.model is None:
            self.place("group")
        return [self.place("label")] if self.reading.has_classes else []

    def labels_in(self, cells: tuple[Cell, ...]) -> tuple[str, ...]:
        """The labels in the cells of one row, each once; in a tree paths."""
        labels: list[str] = []
        separator = self.reading.separator or SEPARATOR
        for cell in cells:
            if isinstance(cell, str):
                self.separated |= separator in cell
                cell = cell.split(separator)
            labels += [part for part in map(str.strip, cell) if part]
        if self.reading.tree:
            labels = [node_path(label) for label in labels]
        return tuple(dict.fromkeys(labels))

    def has_several(self) -> bool:
        """Images may have several labels, or none."""
        separator = self.reading.has_classes and self.reading.separator is not None
        return separator or any(len(labels) > 1 for labels in self.labels)

    def place(self, role: str) -> int:
        """The place of a column. UserError without it."""
        if role in self.roles:
            return self.roles.index(role)
        names = some_of(map(shorten, self.table.header), 20) or "no columns"
        column = getattr(self.reading.columns, role)
        text = f"{self.table.path} has no column {column!r}, but {names}"
        raise UserError(f"{text} (--data.columns.{role} NAME)")

    def _read(self, numbers: array, splits: array, entries: array) -> Iterator[str]:
        """Yields the path of each row; appends its number, split and labels to the arrays."""
        named = self.reading.columns.split != "split" and self.reading.model is None
        has_splits = named or "split" in self.roles
        columns = [self.place("path"), *([self.place("split")] if has_splits else [])]
        entry_of: dict[tuple[Cell, ...], int] = {}
        files: set[int] = set()  # hashes, as paths would take the most memory
        for number, row in self.table.rows([*columns, *self.columns()]):
            name, split = str(row[0]), str(row[1]).lower() if has_splits else "train"
            file = hash(os.path.normpath(os.path.join(self.table.folder, name)))
            cells = row[len(columns) :]
            if not name:
                raise self._mistake(number, "has no path")
            if split not in SPLIT_WORDS:
                names = ", ".join(SPLIT_WORDS)
                raise self._mistake(number, f"has split {shorten(row[1])!r}; known are {names}")
            if file in files:
                raise self._mistake(number, f"lists {name} again; list it with all its labels")
            if cells not in entry_of:
                entry_of[cells] = len(entry_of)
                self.labels.append(self.labels_in(cells))
            files.add(file)
            numbers.append(number)
            splits.append(SPLITS.index(SPLIT_WORDS[split]))
            entries.append(entry_of[cells])
            yield name

    def _mistake(self, number: int, what: str) -> UserError:
        return UserError(f"{self.table.place(number)} {what}")

    def read(self) -> Splits:
        """The listed splits, and those that are cut from train. UserError as of `part`."""
        readers: Readers = {
            SPLITS[kind]: partial(self.part, SPLITS[kind]) for kind in np.unique(self.splits)
        }
        options = {"named": "split" in self.roles, "divide": self.divide}
        return make_splits(self.table.path, readers, self.reading, **options)

    def part(self, split: SplitName) -> Labelled:
        """The images of a split. UserError for a file that does not exist, or without its label."""
        rows = np.flatnonzero(self.splits == SPLITS.index(split))
        paths = self.names.select(rows, root=self.table.folder)
        if missing := missing_files(paths):
            name = paths.name(missing[0])
            what = f"names {name!r}, which is no file below {paths.root}"
            what += f" ({len(missing):,} are missing){similar_file(name, paths.root)}"
            raise self._mistake(int(self.numbers[rows[missing[0]]]), what)
        entries, model = self.entries[rows], self.reading.model
        if self.reading.has_classes and not (self.multilabel or (model and model.multilabel)):
            bare = np.isin(entries, [at for at, labels in enumerate(self.labels) if not labels])
            if bare.any():
                raise self._mistake(int(self.numbers[rows[bare.argmax()]]), "has no label")
        where = f"{self.table.path} ({split})" if "split" in self.roles else self.table.path
        used = [self.labels[at] for at in np.unique(entries)]
        notes = [*self.notes] if split == "train" and model is None else []
        if split == "train" and self.reading.separator is None and not self.reading.tree:
            notes += _joined_labels({name for names in used for name in names}, where)
        return Labelled(
            where,
            paths,
            self.names.select(rows),
            self.labels,
            entries,
            multilabel=self.multilabel,
            notes=notes,
        )


def _joined_labels(classes: set[str], path: str) -> list[str]:
    """A note if the classes look like several labels that are not separated."""
    for mark, share in ((";", 0.5), (",", 0.9), ("/", 0.9)):  # ImageNet's names have commas
        joined = sorted(name for name in classes if mark in name)
        if joined and len(joined) >= share * len(classes):
            return [
                f"{path}: {len(joined):,} of {len(classes):,} classes contain {mark!r}, such as "
                f"{shorten(joined[0])!r}; if that is several labels, add --data.label_separator "
                f"'{mark}'{'; if it is a tree, --data.labels tree' if mark == '/' else ''}"
            ]
    return []
