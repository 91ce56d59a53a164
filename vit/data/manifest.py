"""Datasets listed in a CSV or Parquet file with the columns path, label and, optionally, split.

path,label,split            path,label              path,label,label
a/1.jpg,cat,train           a/1.jpg,cat|indoors     a/1.jpg,cat,indoors
a/2.jpg,dog,val             a/2.jpg,dog             a/2.jpg,dog,
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

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
from vit.data.table import Row, read_table, text_of
from vit.errors import UserError, did_you_mean
from vit.reading import irregular

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
SEPARATOR = "|"
OTHER_SEPARATORS = (";", ",", "/")
"""What other programs write between the labels of one image; it is part of a class name here."""

_NEARLY_ALL, _MOST = 0.9, 0.75
"""Share of labels with such a separator, or of those with a part in common, that gets a note."""

_MAX_SHOWN = 100
"""Characters of a label in a message."""

_ORDER: tuple[SplitName, ...] = ("train", "val", "test")


def load_manifest(
    path: str | os.PathLike[str],
    *,
    val_fraction: float = 0.1,
    test_fraction: float = 0.1,
    seed: int = 0,
    labelled: bool = True,
) -> Splits:
    """The splits that a manifest lists; relative paths are relative to the manifest's folder.

    An image has several labels if its cell holds `a|b` or a Parquet list, or if the label column
    is repeated; then the labels of the whole set become rows of zeros and ones, and an empty cell
    is an image without any. Splits are train, val (also valid, validation) and test; the classes
    are those of train, in natural order. What is absent is cut from train as in `load_folder`.
    Without `labelled` the labels are neither needed nor read, and there are no classes.

    Raises:
        UserError: The file cannot be read, a column is missing, a row is incomplete or doubled, a
            file does not exist, a split is unknown, or val or test has a label that train lacks.
    """
    listing = _Listing(path, labelled)
    path, notes = listing.path, []
    if "train" not in listing.present:
        raise UserError(f"{path} has no rows of split train")
    train = listing.rows_of("train")
    classes = class_order(listing.labels_of(train))
    if labelled:
        if not classes:
            raise UserError(f"{path} has no labels in its train rows")
        check_classes(classes, path)
        notes = listing.separator_notes() + look_alikes(classes, path)
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


def load_held_out_manifest(path: str | os.PathLike[str], classes: list[str]) -> Splits:
    """Images for a model that exists: all are test, labelled by the model's `classes`, if any.

    With a split column, the rows of test, or else of val, or else all.
    """
    listing = _Listing(path, labelled=bool(classes))
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

    def __init__(self, path: str | os.PathLike[str], labelled: bool) -> None:
        self.path = path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self.folder = os.path.dirname(path)
        needed = ("path", "label") if labelled else ("path",)
        header, rows = read_table(path, needed, ("split",))
        for column in ("path", "split"):
            if header.count(column) > 1:
                raise UserError(f"{path} has {header.count(column)} columns {column!r}; keep one")
        label_at = [i for i, name in enumerate(header) if labelled and name == "label"]
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
        self.multilabel = len(label_at) > 1 or any(len(labels) > 1 for labels in self.labels)
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
                labels = [label for part in key for label in _labels(part)]
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
                f"has split {_short(value)}; known are "
                f"{', '.join(SPLIT_NAMES)}{did_you_mean(value[:_MAX_SHOWN], SPLIT_NAMES)}",
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
                    f"write several labels as a{SEPARATOR}b in one row"
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
        hint = did_you_mean(unknown, classes) if len(unknown) <= _MAX_SHOWN else ""
        for separator in OTHER_SEPARATORS:
            parts = [part.strip() for part in unknown.split(separator)]
            if len(parts) > 1 and all(part in classes for part in parts):
                hint = f"; write several labels as {SEPARATOR.join(parts)}"
        return self._mistake(
            number, f"({split}) has label {_short(unknown)}, which no train row has{hint}"
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

    def separator_notes(self) -> list[str]:
        """A note where label cells look like several labels that are not separated by `|`."""
        counts = np.bincount(self.cells, minlength=len(self.labels))
        labelled = sum(int(n) for n, own in zip(counts, self.labels, strict=True) if own)
        for separator in OTHER_SEPARATORS:
            joined = [at for at, own in enumerate(self.labels) if any(separator in x for x in own)]
            number = int(counts[joined].sum())
            if number and (number >= _NEARLY_ALL * labelled or self._recurring(separator, joined)):
                most = int(joined[np.argmax(counts[joined])])
                example = next(label for label in self.labels[most] if separator in label)
                parts = [part.strip() for part in example.split(separator)]
                return [
                    f"{self.path}: {number:,} of {labelled:,} labels contain {separator!r}, which "
                    f"does not separate labels: {_short(example)} is one class; if it is several, "
                    f"write {_short(SEPARATOR.join(parts))} (and train with --model.loss.kind "
                    "sigmoid)"
                ]
        return []

    def _recurring(self, separator: str, joined: list[int]) -> bool:
        """Whether most of these cells have a part that another cell has, too."""
        parts = [
            {part.strip() for label in labels for part in label.split(separator)}
            for labels in self.labels
        ]
        cells = Counter(part for cell in parts for part in cell)
        shared = sum(any(cells[part] > 1 for part in parts[at]) for at in joined)
        return shared >= _MOST * len(joined)


def _labels(cell: str | tuple[str, ...]) -> list[str]:
    parts = cell.split(SEPARATOR) if isinstance(cell, str) else cell
    return [part for part in map(str.strip, parts) if part]


def _short(text: str) -> str:
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")
