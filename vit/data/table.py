"""The header and the rows of a CSV or Parquet file."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vit.data.addresses import reaching
from vit.errors import UserError, needed

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Cell = str | tuple[str, ...]
"""Text without outer blanks; a list of Parquet is a tuple."""


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
    except (UnicodeDecodeError, csv.Error) as error:
        where = f"{path} is not CSV in UTF-8 in the row that begins in line {line + 1}"
        raise UserError(f"{where}: {error}; check its quotes and encoding") from error


@contextmanager
def open_parquet(path: str) -> "Iterator[ParquetFile]":
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
