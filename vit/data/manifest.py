"""Datasets listed in a CSV or Parquet file with the columns path, label and, optionally, split.

path,label,split            path,label              path,label,label
a/1.jpg,cat,train           a/1.jpg,cat|indoors     a/1.jpg,cat,indoors
a/2.jpg,dog,val             a/2.jpg,dog             a/2.jpg,dog,
"""

import csv
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    missing_files,
    shorten,
)
from vit.errors import UserError, did_you_mean

SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")
SEPARATOR = "|"


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
    path, entries, multilabel = _read(path, labelled)
    by_split: dict[SplitName, list[_Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    if "train" not in by_split:
        raise UserError(f"{path} has no rows of split train")
    train = by_split["train"]
    classes = class_order(label for entry in train for label in entry.labels)
    if labelled:
        if not classes:
            raise UserError(f"{path} has no labels in its train rows")
        check_classes(classes, path)
    sets: dict[SplitName, ImageSet] = {
        name: _images(path, part, classes, multilabel) for name, part in by_split.items()
    }
    return complete(
        classes,
        sets,
        [entry.path for entry in train],
        multilabel=multilabel,
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=test_fraction,
        where=path,
    )


def load_held_out_manifest(path: str | os.PathLike[str], classes: list[str]) -> Splits:
    """Images for a model that exists: all are test, labelled by the model's `classes`, if any.

    With a split column, the rows of test, or else of val, or else all.
    """
    path, entries, multilabel = _read(path, labelled=bool(classes))
    splits = {entry.split for entry in entries}
    name = next(split for split in EVALUATION_ORDER if split in splits)
    chosen = [entry for entry in entries if entry.split == name]
    return all_as_test(_images(path, chosen, classes, multilabel), classes, [])


def _read(path: str | os.PathLike[str], labelled: bool = True) -> tuple[str, list["_Entry"], bool]:
    """Absolute path, rows, and whether images have several labels."""
    path = os.path.abspath(os.path.expanduser(os.fspath(path)))
    is_parquet = path.lower().endswith((".parquet", ".pq"))
    header, rows = _read_parquet(path) if is_parquet else _read_csv(path)
    if not labelled:
        header = ["" if name == "label" else name for name in header]
    entries = _entries(path, header, rows, ("path", "label") if labelled else ("path",))
    _check_unique(path, entries)
    return path, entries, header.count("label") > 1 or any(len(e.labels) > 1 for e in entries)


@dataclass(frozen=True)
class _Entry:
    row: int
    path: str
    labels: tuple[str, ...]
    split: SplitName


def _read_csv(path: str) -> tuple[list[str], Iterable[tuple[int, list[Any]]]]:
    """The header in lower case, and the rows with the number of the line they end on."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # Spreadsheets of some languages write semicolons.
            reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
            rows = [(reader.line_num, list(row)) for row in reader if any(map(str.strip, row))]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise UserError(f"{path} is empty; expected columns path,label[,split]")
    return _lower(rows[0][1]), rows[1:]


def _read_parquet(path: str) -> tuple[list[str], Iterable[tuple[int, list[Any]]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{path} needs pyarrow: pip install 'vit[parquet]', or save it as CSV"
        ) from error
    try:
        # Not read_table, which makes columns of folder names such as split=val.
        table = parquet.ParquetFile(path).read()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from error
    except pyarrow.ArrowInvalid as error:
        raise UserError(f"{path} is not a Parquet file: {error}") from error
    header = _lower(table.column_names)
    wanted = [index for index, name in enumerate(header) if name in ("path", "label", "split")]
    if "path" not in header:
        return header, ()
    columns = [table.column(index).to_pylist() for index in wanted]
    rows = ((number, list(cells)) for number, cells in enumerate(zip(*columns, strict=True), 1))
    return [header[index] for index in wanted], rows


def _lower(names: Iterable[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def _entries(
    path: str, header: list[str], rows: Iterable[tuple[int, list[Any]]], needed: Sequence[str]
) -> list[_Entry]:
    for column in needed:
        if column not in header:
            raise UserError(
                f"{path} has columns {', '.join(header)}, but none called {column!r}"
                f"{did_you_mean(column, header)}"
            )
    for column in ("path", "split"):
        if header.count(column) > 1:
            raise UserError(f"{path} has {header.count(column)} columns {column!r}; keep one")
    path_at = header.index("path")
    label_at = [index for index, name in enumerate(header) if name == "label"]
    split_at = header.index("split") if "split" in header else None
    entries = []
    for number, cells in rows:
        if len(cells) < len(header):
            raise UserError(f"{path} row {number} has {len(cells)} of {len(header)} columns")
        name = _text(cells[path_at])
        if not name:
            raise UserError(f"{path} row {number} has no path")
        labels = [label for index in label_at for label in _labels(cells[index])]
        split: SplitName = "train"
        if split_at is not None:
            split = _split(path, number, _text(cells[split_at]))
        entries.append(_Entry(number, name, tuple(dict.fromkeys(labels)), split))
    if not entries:
        raise UserError(f"{path} has a header but no rows")
    return entries


def _labels(cell: Any) -> list[str]:
    cells = cell if isinstance(cell, list | tuple) else _text(cell).split(SEPARATOR)
    return [text for text in map(_text, cells) if text]


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _split(path: str, number: int, value: str) -> SplitName:
    split = SPLIT_NAMES.get(value.lower())
    if split is None:
        raise UserError(
            f"{path} row {number} has split {value!r}; "
            f"known are {', '.join(SPLIT_NAMES)}{did_you_mean(value, SPLIT_NAMES)}"
        )
    return split


def _check_unique(path: str, entries: list[_Entry]) -> None:
    """A file listed twice would count twice, or be in train and in test."""
    rows: dict[str, int] = {}
    for entry in entries:
        file = os.path.normpath(entry.path)
        if file in rows:
            raise UserError(
                f"{path} lists {entry.path} twice, in rows {rows[file]} and {entry.row}; "
                f"write several labels as a{SEPARATOR}b in one row"
            )
        rows[file] = entry.row


def _images(path: str, entries: list[_Entry], classes: list[str], multilabel: bool) -> ImageSet:
    index = {name: number for number, name in enumerate(classes)}
    labels = (
        np.zeros((len(entries), len(classes)), dtype=np.float32)
        if multilabel
        else np.zeros(len(entries), dtype=np.int64)
    )
    for position, entry in enumerate(entries if classes else ()):
        if not multilabel and len(entry.labels) != 1:
            raise UserError(f"{path} row {entry.row} has no label")
        unknown = [label for label in entry.labels if label not in index]
        if unknown:
            raise UserError(
                f"{path} row {entry.row} ({entry.split}) has label {unknown[0]!r}, "
                f"which no train row has{did_you_mean(unknown[0], classes)}"
            )
        numbers = [index[label] for label in entry.labels]
        if multilabel:
            labels[position, numbers] = 1
        else:
            labels[position] = numbers[0]
    paths = PathList((entry.path for entry in entries), os.path.dirname(path))
    missing = missing_files(paths)
    if missing:
        files = shorten([entries[position].path for position in missing], limit=1)
        raise UserError(
            f"{path} lists files that do not exist: {files} (row {entries[missing[0]].row}); "
            f"relative paths start at {os.path.dirname(path)}"
        )
    return ImageSet(items=paths, labels=labels, names=paths.printable())
