"""The cells of a CSV or Parquet file: a header, and rows that are read one after the other."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from vit.errors import UserError, did_you_mean, shorten, some_of
from vit.reading import special

Row = tuple[int, list[Any]]
"""Number for messages, from 1 (Parquet: of the row; CSV: of the line it ends on), and cells."""

_MAX_LISTED = 20
"""Column names in a message, and characters of one."""


def read_table(
    path: str, needed: Sequence[str], optional: Sequence[str] | None = ()
) -> tuple[list[str], Iterator[Row]]:
    """The column names in lower case, and the rows.

    Of a Parquet file only the `needed` and `optional` columns are read; a CSV file has all. With
    `optional` None all columns are read, and their names are as they are written. Rows are read
    while they are asked for, so a mistake in the file may show late.

    Raises:
        UserError: The file cannot be read, is not of its format, or lacks a needed column.
    """
    kind = special(path)
    if kind is not None:
        raise UserError(f"cannot read {path}: it is {kind}, not a CSV or Parquet file")
    if path.lower().endswith((".parquet", ".pq")):
        return _read_parquet(path, needed, optional)
    rows = _csv_rows(path)
    first = next(rows, None)
    if first is None and not needed:
        return [], rows
    if first is None:
        extra = "".join(f"[,{name}]" for name in optional or ())
        raise UserError(f"{path} is empty; expected columns {','.join(needed)}{extra}")
    header = _lower(first[1])
    _check_header(path, header, needed)
    return (header if optional is not None else [name.strip() for name in first[1]]), rows


def column_names(path: str) -> list[str]:
    """The column names in lower case; none of an empty file. UserError where it is no table."""
    header, _ = read_table(path, (), None)
    return _lower(header)


def _check_header(path: str, header: list[str], needed: Sequence[str]) -> None:
    for column in needed:
        if column not in header:
            raise UserError(
                f"{path} has columns {listed(header)}, but none called {column!r}"
                f"{did_you_mean(column, header)}"
            )


def listed(header: list[str]) -> str:
    """The names of columns, for a message."""
    return some_of(map(shorten, header), _MAX_LISTED)


def _csv_rows(path: str) -> Iterator[Row]:
    """All rows that have any text, the header among them."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            # An empty line after the last: it stays a row of its own unless a quote is open.
            lines = chain(file, ("\n",))
            # Spreadsheets of some languages write semicolons.
            reader = csv.reader(lines, delimiter=max(",;\t", key=first.count))
            start = end = 0
            row: list[Any] = []
            kept: list[Row] = []  # a row is given when the next is known, else an error comes late
            for row in reader:
                yield from kept
                start, end = end + 1, reader.line_num
                kept = [(end, row)] if any(map(str.strip, row)) else []
            if row:
                raise UserError(
                    f'{path} has a quote (") in the row that begins in line {start} that is never '
                    "closed; close it, or double it where it belongs to the text"
                )
            yield from kept
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8: {error}") from error


def _read_parquet(
    path: str, needed: Sequence[str], optional: Sequence[str] | None
) -> tuple[list[str], Iterator[Row]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            f"{path} needs pyarrow: pip install 'vitkit[parquet]', or save it as CSV"
        ) from error
    try:
        # Not read_table, which makes columns of folder names such as split=val.
        file = parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, error) from error
    names: list[str] = file.schema_arrow.names
    header = _lower(names)
    _check_header(path, header, needed)
    at = list(range(len(header)))
    if optional is not None:
        at = [index for index in at if header[index] in (*needed, *optional)]
    # Columns are chosen by name, which must then be the only one, and no path into a struct.
    chosen = [names[index] for index in at]
    by_name = len(set(names)) == len(names) and not any("." in name for name in chosen)

    def rows() -> Iterator[Row]:
        before = 0
        try:
            with file:
                for batch in file.iter_batches(columns=chosen if by_name else None):
                    columns = [batch.column(key).to_pylist() for key in (chosen if by_name else at)]
                    for number, cells in enumerate(zip(*columns, strict=True), before + 1):
                        yield number, list(cells)
                    before += batch.num_rows
        except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error

    shown = header if optional is not None else [name.strip() for name in names]
    return [shown[index] for index in at], rows()


def _unreadable(path: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno is not None:
        return UserError(f"cannot read {path}: {error.strerror or reason}")
    return UserError(f"{path} is not a Parquet file: {reason}")


def _lower(names: Iterable[str]) -> list[str]:
    return [name.strip().lower() for name in names]


def text_of(cell: Any) -> str:
    """A cell without outer blanks; "" where it is empty: None, or a number that is NaN."""
    if isinstance(cell, str):
        return cell.strip()
    if cell is None or cell != cell:
        return ""
    return (cell.decode() if isinstance(cell, bytes) else str(cell)).strip()
