"""Datasets listed in a CSV or Parquet file with the columns path, label and, optionally, split.

path,label,split            path,label              path,label,label
a/1.jpg,cat,train           a/1.jpg,cat|indoors     a/1.jpg,cat,indoors
a/2.jpg,dog,val             a/2.jpg,dog             a/2.jpg,dog,

Or, without a column of labels, columns of zeros and ones (vit/data/one_hot.py).
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from vit.data.label_text import (
    OTHER_SEPARATORS,
    SEPARATOR,
    joined_labels_note,
    needless_separator,
)
from vit.data.one_hot import class_columns, is_yes
from vit.data.sources import (
    EVALUATION_ORDER,
    SPLIT_NAMES,
    ImageSet,
    PathList,
    SplitName,
    Splits,
    all_as_test,
    check_classes,
    class_order,
    complete,
    look_alikes,
    missing_files,
)
from vit.data.table import Row, column_names, read_table, text_of
from vit.errors import UserError, did_you_mean, shorten
from vit.reading import irregular

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
_ORDER: tuple[SplitName, ...] = ("train", "val", "test")


def load_manifest(
    path: str | os.PathLike[str],
    *,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    labelled: bool = True,
    separator: str | None = None,
) -> Splits:
    """The splits that a manifest lists; relative paths are relative to the manifest's folder.

    An image has several labels if its cell holds `a|b` or a Parquet list, if the label column is
    repeated, or if it has a 1 in several columns of classes. `separator` takes the place of `|`,
    and says that the set is one of several labels. Then the labels of the whole set become rows
    of zeros and ones, and an empty cell is an image without any. Splits are train, val (also valid,
    validation) and test; the classes are those of train, in natural order. What is absent is cut
    from train as in `load_folder`.
    Without `labelled` the labels are neither needed nor read, and there are no classes.

    Raises:
        UserError: The file cannot be read, a column is missing, a row is incomplete or doubled, a
            file does not exist, a split is unknown, val or test has a label that train lacks, a
            column of a class has no 1 in train, or no label has the separator.
    """
    listing = _Listing(path, labelled, separator)
    path, notes = listing.path, []
    if labelled and separator is not None and not listing.separated:
        raise needless_separator(path, listing.separator, listing.labels, listing.columns)
    if "train" not in listing.present:
        raise UserError(f"{path} has no rows of split train")
    train = listing.rows_of("train")
    classes = class_order(listing.labels_of(train))
    if labelled:
        if not classes:
            raise UserError(f"{path} has no labels in its train rows")
        listing.check_columns(classes)
        check_classes(classes, path)
        notes = listing.notes + look_alikes(classes, path)
        if not listing.columns and separator is None:
            notes = joined_labels_note(path, listing.labels, listing.cells) + notes
    sets: dict[SplitName, ImageSet] = {
        name: listing.images(name, classes) for name in listing.present
    }
    return complete(
        classes,
        sets,
        listing.names.select(train),
        multilabel=listing.multilabel,
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        where=path,
        notes=notes,
    )


def load_held_out_manifest(
    path: str | os.PathLike[str],
    classes: list[str],
    *,
    separator: str | None = None,
    multilabel: bool = False,
) -> Splits:
    """Images for a model that exists: all are test, labelled by the model's `classes`, if any.

    With a split column, the rows of test, or else of val, or else all. `multilabel`: whether the
    model is one for several labels per image; then no row needs to have several.
    """
    listing = _Listing(path, bool(classes), separator)
    listing.multilabel = bool(classes) and (multilabel or listing.multilabel)
    name = min(listing.present, key=EVALUATION_ORDER.index)
    return all_as_test(listing.images(name, classes), classes, [])


class _Listing:
    """The rows of a manifest, column by column: numbers, and one block of bytes with the paths.

    Attributes:
        path: Absolute path of the manifest.
        names: n paths as they stand in the rows.
        numbers: int64 n, what messages call each row.
        splits: int8 n, index into `_ORDER`.
        cells: int32 n, index into `labels`: equal label cells share one entry.
        labels: The labels of each distinct label cell, each label once.
        multilabel: Whether images have several labels.
        present: The splits, in the order in which they first occur.
    """

    def __init__(
        self, path: str | os.PathLike[str], labelled: bool, separator: str | None = None
    ) -> None:
        self.path = path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self.folder = os.path.dirname(path)
        self.separator = SEPARATOR if separator is None else separator
        self.separated = False
        """Whether a label has the separator."""
        self.notes: list[str] = []
        self.columns: dict[int, str] = {}
        """Index of each column that is a class -> the class."""
        names = column_names(path) if labelled else []
        if "path" in names and "label" not in names:
            self._find_class_columns()
        needed = ("path", "label") if labelled and not self.columns else ("path",)
        header, rows = read_table(path, needed, None if self.columns else ("split",))
        header = [name.lower() for name in header]
        for column in ("path", "split"):
            if header.count(column) > 1:
                raise UserError(f"{path} has {header.count(column)} columns {column!r}; keep one")
        label_at = list(self.columns)
        if labelled and not self.columns:
            label_at = [i for i, name in enumerate(header) if name == "label"]
        self.labels: list[tuple[str, ...]] = []
        numbers, splits, cells, hashes = (array(kind) for kind in "qbiq")
        self.names = PathList(
            self._columns(rows, header, label_at, (numbers, splits, cells, hashes))
        )
        if not len(self.names):
            raise UserError(f"{path} has a header but no rows")
        self.numbers, self.splits, self.cells = (
            np.frombuffer(column, dtype=column.typecode) for column in (numbers, splits, cells)
        )
        self._check_unique(np.frombuffer(hashes, dtype="q"))
        self.multilabel = any(len(labels) > 1 for labels in self.labels)
        if self.columns:
            self.multilabel |= not all(self.labels)
        elif len(label_at) > 1 or (labelled and separator is not None):
            self.multilabel = True
        kinds, first = np.unique(self.splits, return_index=True)
        self.present: list[SplitName] = [_ORDER[kind] for kind in kinds[np.argsort(first)]]

    def _columns(
        self,
        rows: Iterable[Row],
        header: list[str],
        label_at: list[int],
        columns: tuple[array, array, array, array],
    ) -> Iterator[str]:
        """Yields the path of each row; appends its number, split, label cell, and a hash of its
        file to `columns`, and new label cells to `labels`."""
        path_at = header.index("path")
        split_at = header.index("split") if "split" in header else None
        numbers, splits, cells, hashes = columns
        known_cells: dict[Any, int] = {}
        known_splits: dict[Any, int] = {}
        for number, row in rows:
            if len(row) < len(header):
                raise self._mistake(number, f"has {len(row)} of {len(header)} columns")
            name = self._text(number, row[path_at])
            if not name:
                raise self._mistake(number, "has no path")
            key = tuple(self._key(number, row[index]) for index in label_at)
            cell = known_cells.get(key)
            if cell is None:
                cell = known_cells[key] = len(known_cells)
                if self.columns:
                    pairs = zip(self.columns.values(), key, strict=True)
                    labels = [
                        name for name, text in pairs if isinstance(text, str) and is_yes(text)
                    ]
                else:
                    labels = [label for part in key for label in self._labels(part)]
                self.labels.append(tuple(dict.fromkeys(labels)))
            value = "train" if split_at is None else self._text(number, row[split_at])
            split = known_splits.get(value)
            if split is None:
                split = known_splits[value] = self._split(number, value)
            numbers.append(number)
            splits.append(split)
            cells.append(cell)
            hashes.append(hash(self._file(name)))
            yield name

    def _find_class_columns(self) -> None:
        header, rows = read_table(self.path, ("path",), None)
        found = class_columns(self.path, header, rows, ("path", "split"))
        self.columns = {at: header[at] for at in found.places}
        self.notes += found.notes

    def _labels(self, cell: str | tuple[str, ...]) -> list[str]:
        if isinstance(cell, str):
            self.separated |= self.separator in cell
            cell = tuple(cell.split(self.separator))
        return [part for part in map(str.strip, cell) if part]

    def check_columns(self, classes: list[str]) -> None:
        """UserError for a column of a class that has no 1 in the rows of train."""
        for name in self.columns.values():
            if name not in classes:
                raise UserError(
                    f"{self.path}: the column of class {name!r} has a 1 in no train row, so that "
                    "it cannot be learned; remove the column, or add images of the class"
                )

    def _key(self, number: int, cell: Any) -> str | tuple[str, ...]:
        """A label cell as text, or as the texts of a list."""
        if isinstance(cell, list | tuple):
            return tuple(self._text(number, item) for item in cell)
        return self._text(number, cell)

    def _text(self, number: int, cell: Any) -> str:
        try:
            return text_of(cell)
        except UnicodeDecodeError as error:
            raise self._mistake(number, f"has bytes that are not UTF-8: {error}") from error

    def _split(self, number: int, value: str) -> int:
        split = SPLIT_NAMES.get(value.lower())
        if split is None:
            raise self._mistake(
                number,
                f"has split {shorten(value)!r}; known are "
                f"{', '.join(SPLIT_NAMES)}{did_you_mean(value, SPLIT_NAMES)}",
            )
        return _ORDER.index(split)

    def _mistake(self, number: int, what: str) -> UserError:
        return UserError(f"{self.path} row {number} {what}")

    def _file(self, name: str) -> str:
        """One spelling of the file that a row names."""
        return os.path.normpath(os.path.join(self.folder, name))

    def _check_unique(self, hashes: np.ndarray) -> None:
        """A file listed twice would count twice, or be in train and in test."""
        order = np.argsort(hashes, kind="stable")
        equal = np.zeros(len(order), dtype=bool)
        equal[1:] = hashes[order[1:]] == hashes[order[:-1]]
        equal[:-1] |= equal[1:]
        rows: dict[str, int] = {}
        for at in np.sort(order[equal]).tolist():  # hashes may be equal by accident
            name = self.names.name(at)
            file = self._file(name)
            if file in rows:
                raise UserError(
                    f"{self.path} lists {name} twice, in rows {rows[file]} and {self.numbers[at]}; "
                    f"write several labels as a{self.separator}b in one row"
                )
            rows[file] = int(self.numbers[at])

    def rows_of(self, split: SplitName) -> np.ndarray:
        """Places of the rows of a split, ascending."""
        return np.flatnonzero(self.splits == _ORDER.index(split))

    def labels_of(self, rows: np.ndarray) -> Iterator[str]:
        """The labels that occur in the rows at these places, in no order."""
        used = np.unique(self.cells[rows]).tolist()
        return (label for cell in used for label in self.labels[cell])

    def images(self, split: SplitName, classes: list[str]) -> ImageSet:
        """The images of a split, and their labels where there are `classes`."""
        rows = self.rows_of(split)
        shape = (len(rows), len(classes)) if self.multilabel else (len(rows),)
        labels = np.zeros(shape, dtype=np.float32 if self.multilabel else np.int64)
        if classes:
            self._fill(labels, rows, split, classes)
        paths = self.names.select(rows, root=self.folder)
        missing = missing_files(paths)
        if missing:
            self._refuse_missing(rows[missing])
        return ImageSet(items=paths, labels=labels, names=paths.printable())

    def _fill(
        self, labels: np.ndarray, rows: np.ndarray, split: SplitName, classes: list[str]
    ) -> None:
        """Class numbers, or ones in the columns of the classes, into zeros."""
        index = {name: number for number, name in enumerate(classes)}
        cells = self.cells[rows]
        used = np.unique(cells).tolist()
        numbers: dict[int, list[int]] = {}
        bad = []
        for cell in used:
            names = self.labels[cell]
            numbers[cell] = [index[label] for label in names if label in index]
            if len(numbers[cell]) < len(names) or not (self.multilabel or len(names) == 1):
                bad.append(cell)
        if bad:
            at = int(np.flatnonzero(np.isin(cells, bad))[0])
            raise self._unusable(int(self.numbers[rows[at]]), int(cells[at]), split, index)
        if self.multilabel:
            for at, cell in enumerate(cells.tolist()):
                labels[at, numbers[cell]] = 1
        else:
            table = np.zeros(len(self.labels), dtype=np.int64)
            table[used] = [numbers[cell][0] for cell in used]
            labels[:] = table[cells]

    def _unusable(
        self, number: int, cell: int, split: SplitName, classes: dict[str, int]
    ) -> UserError:
        labels = self.labels[cell]
        if not labels:
            return self._mistake(number, "has no label")
        unknown = next(label for label in labels if label not in classes)
        hint = did_you_mean(unknown, classes)
        for separator in OTHER_SEPARATORS:
            parts = [part.strip() for part in unknown.split(separator)]
            if len(parts) > 1 and all(part in classes for part in parts):
                hint = f"; write several labels as {self.separator.join(parts)}, or add "
                hint += f"--data.label_separator '{separator}'"
        return self._mistake(
            number, f"({split}) has label {shorten(unknown)!r}, which no train row has{hint}"
        )

    def _refuse_missing(self, rows: np.ndarray) -> None:
        names = self.names.select(rows)
        first, number = names.name(0), int(self.numbers[rows[0]])
        kind = irregular(os.path.join(self.folder, first))
        if kind not in (None, "missing"):
            raise self._mistake(number, f"names {first!r}, which is no image file: it is {kind}")
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        raise UserError(
            f"{self.path} lists files that do not exist: {first!r}{more} (row {number}); "
            f"relative paths start at {self.folder}"
        )
