"""Files of answers that grow by whole rows: CSV, JSON Lines, and folders of Parquet parts.

X.json beside the answers X says what they were begun with. The number of rows says where to
continue in the list of pictures.
"""

import csv
import io
import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from vit.errors import UserError
from vit.writing import atomic, remove_orphans, writable, write_json

BLOCK_ROWS = 10_000
"""Rows are written when there are so many; lines also after two seconds."""
Row = dict[str, Any]
"""Column -> cell; None is empty."""


class AnswerFile(ABC):
    """Rows in the order of a list of pictures.

    Attributes: `done`, the rows in the file; `last`, the picture of the last one.
    """

    seconds = math.inf
    """Rows are written at least this often."""

    def __init__(self, out: Path, columns: list[str]) -> None:
        self.columns = columns
        self._out = out
        self._rows: list[Row] = []
        self.last: str | None = None
        self._written = time.monotonic()
        self.done = self._begin()

    def add(self, rows: list[Row]) -> None:
        """Takes the next rows, and writes those that it has when they are a block."""
        self._rows += rows
        late = time.monotonic() - self._written >= self.seconds
        if late or len(self._rows) >= BLOCK_ROWS:
            self.finish()

    def finish(self) -> None:
        """Writes the last rows."""
        if self._rows:
            self._write(self._rows)
        self.done += len(self._rows)
        self._rows = []
        self._written = time.monotonic()

    def shown(self, name: str) -> str:
        """A picture's name as it stands in the file."""
        return name

    @abstractmethod
    def _begin(self) -> int:
        """Makes the file or removes what is torn; returns the number of rows."""

    @abstractmethod
    def _write(self, rows: list[Row]) -> None: ...


def check_answer_file(out: Path, *, features: bool) -> None:
    """Raises UserError for a name or a place that cannot be used."""
    if out.suffix not in (".csv", ".jsonl", ".parquet"):
        raise UserError(f"--out {out}: the name must end in .csv, .jsonl or .parquet")
    if features and out.suffix != ".parquet":
        raise UserError(f"--features needs a folder of Parquet files: --out {out.stem}.parquet")
    if out.suffix == ".parquet" and not find_spec("pyarrow"):
        raise UserError(
            "--out with .parquet needs pyarrow: pip install 'vitkit[parquet]', or give a .csv or "
            ".jsonl name"
        )
    if out.exists() and out.is_dir() != (out.suffix == ".parquet"):
        kind = "folder" if out.suffix == ".parquet" else "file"
        raise UserError(f"--out {out} is not a {kind}; choose another name")
    writable(out.parent, "--out")


@contextmanager
def opened(out: Path, columns: list[str], facts: dict[str, Any]) -> Iterator[AnswerFile]:
    """The file, new or continued; this process alone writes it.

    `facts`: what the rows depend on, in JSON types; kept beside the file. "model" is for people and
    may differ. Raises UserError for a file that was begun with others, or by something else.
    """
    try:
        with FileLock(out.with_name(f".{out.name}.lock"), timeout=0):
            _check_begun(out, facts)
            yield _Parts(out, columns) if out.suffix == ".parquet" else _Lines(out, columns)
    except Timeout as error:
        raise UserError(
            f"--out {out} is being written by another process; wait until it has ended"
        ) from error


def _check_begun(out: Path, facts: dict[str, Any]) -> None:
    about = out.with_name(f"{out.name}.json")
    if not out.exists():
        write_json(about, facts)
        return
    try:
        old = json.loads(about.read_bytes())
        old = dict(old)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"--out {out} exists, and {about.name}, which says what it holds, cannot be read; "
            "choose another name"
        ) from error
    for name, value in facts.items():
        if old.get(name) != value and name != "model":
            raise UserError(
                f"--out {out} was begun with {name} {old.get(name)}, not {value}; choose another "
                f"name, or delete {out.name} to begin again"
            )


class _Lines(AnswerFile):
    """CSV or JSON Lines; a row is a line."""

    seconds = 2.0

    def shown(self, name: str) -> str:
        return _one_line(name) if self._out.suffix == ".csv" else name

    def _begin(self) -> int:
        is_csv = self._out.suffix == ".csv"
        with self._out.open("ab+") as file:
            file.seek(0)
            rows = size = 0
            last = b""
            for line in file:
                if line.endswith(b"\n"):
                    rows, size, last = rows + 1, size + len(line), line
            file.truncate(size)
            if is_csv and not rows:
                file.write(_csv_line(self.columns).encode())
        if rows > is_csv:
            text = last.decode("utf-8", "replace")
            self.last = next(csv.reader([text]))[0] if is_csv else _image_of(text)
        return max(rows - is_csv, 0)

    def _write(self, rows: list[Row]) -> None:
        if self._out.suffix == ".csv":
            lines = [_csv_line(list(row.values())) for row in rows]
        else:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        with self._out.open("ab") as file:
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())


def _image_of(line: str) -> str:
    try:
        return json.loads(line)["image"]
    except (ValueError, TypeError, KeyError):
        return line


def _csv_line(cells: list[Any]) -> str:
    line = io.StringIO()
    texts = ["|".join(cell) if isinstance(cell, list) else cell for cell in cells]
    csv.writer(line, lineterminator="").writerow(texts)
    return _one_line(line.getvalue()) + "\n"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


class _Parts(AnswerFile):
    """A folder of Parquet files, named after the position of their first row."""

    def _begin(self) -> int:
        from pyarrow import parquet

        remove_orphans(writable(self._out, "--out"))
        done, parts = 0, set(self._out.glob("part-*.parquet"))
        while (part := self._part(done)) in parts:
            parts.remove(part)
            images = parquet.read_table(part, columns=["image"])["image"]
            done, self.last = done + len(images), images[-1].as_py()
        for part in parts:  # behind one that was deleted
            part.unlink()
        return done

    def _write(self, rows: list[Row]) -> None:
        import pyarrow
        from pyarrow import parquet

        # Types that do not depend on the cells of a part.
        number, text = pyarrow.float32(), pyarrow.string()
        kinds = {"features": pyarrow.list_(number), "labels": pyarrow.list_(text)}
        kinds |= {name: number for name in self.columns if name.startswith("probability")}
        schema = pyarrow.schema([(name, kinds.get(name, text)) for name in self.columns])
        with atomic(self._part(self.done)) as temporary:
            parquet.write_table(pyarrow.Table.from_pylist(rows, schema), temporary)

    def _part(self, start: int) -> Path:
        return self._out / f"part-{start:010}.parquet"
