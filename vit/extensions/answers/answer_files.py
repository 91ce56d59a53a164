"""Files of answers that grow by whole rows: CSV, JSON Lines, and folders of Parquet parts.

X.json beside the answers X says what they were begun with. The number of rows says where to
continue in the list of pictures.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.errors import UserError, check_types
from vit.extensions.answers.answers import Row, printable_name
from vit.extensions.serving.engines import EngineClassifier
from vit.extensions.serving.sole_writer import sole_writer
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.weights.sealed import fingerprint
from vit.writing import (
    atomic,
    for_spreadsheet,
    naming,
    remove_orphans,
    writable,
    write_json,
)

if TYPE_CHECKING:
    import pyarrow

PART_ROWS = 10_000
"""At least, of a Parquet file; the last one has fewer."""
ALL = "pictures of all shards"
"""A fact that may differ: other pictures of the list leave those of a part as they are."""


def identity(classifier: Classifier) -> str:
    """A digest of all that answers depend on, besides the pictures and the precision."""
    plain = vars(classifier).get("plain", classifier)  # of a view, whose own facts follow
    engine = plain.engine if isinstance(plain, EngineClassifier) else None
    config: Any = getattr(plain.model, "config", None)  # which weights of others do not hold
    facts = [
        classifier.classes,
        classifier.preprocess.to_dict(),
        classifier.thresholds if classifier.multilabel else None,
        classifier.temperature,
        engine and engine.name,
        engine.identity if engine else fingerprint(plain.model.state_dict()),
        None if config is None else config.to_dict(),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def columns(classifier: Classifier, asked: PredictOptions, *, features: bool) -> list[str]:
    """Names of the cells of a row: image, class, probability, class_2, probability_2, ..."""
    count = min(asked.top, len(classifier.classes))
    best = ["class", "probability"]
    best += [f"{name}_{i}" for i in range(2, count + 1) for name in best[:2]]
    labels = ["labels"] if classifier.multilabel else []
    more = [name for answer in asked.answers.values() for name in answer.fields]
    return ["image", *best, *labels, *more, "error", *(["features"] if features else [])]


@contextmanager
def opened(
    out: Path, columns: list[str], facts: dict[str, Any], *, spreadsheet: bool = False
) -> "Iterator[Lines | Parts]":
    """The file, new or continued; this process alone writes it. `spreadsheet`: no formulas.

    `facts`: what the rows depend on, in JSON types; kept beside the file. "model" and ALL are for
    people and may differ. Raises UserError for a file that was begun with others, or by something
    else.
    """
    kind = Parts if out.suffix == ".parquet" else partial(Lines, spreadsheet=spreadsheet)
    with sole_writer(out, f"--out {out}"):
        _check_begun(out, facts)
        file = kind(out, columns)
        try:
            yield file
        finally:  # after a signal as well
            file.finish()


def _check_begun(out: Path, facts: dict[str, Any]) -> None:
    about = out.with_name(f"{out.name}.json")
    if not out.exists():
        write_json(about, facts)
        return
    if not about.is_file():
        raise UserError(
            f"--out {out} exists without {about.name}, which says what it was begun with; choose "
            "another name"
        )
    try:
        check_types(about, old := json.loads(about.read_bytes()))
    except ValueError as error:
        raise UserError(f"{about} is damaged ({error}); choose another --out") from error
    for name, value in facts.items():
        if old.get(name) != value and name not in ("model", ALL):
            raise UserError(
                f"--out {out} was begun with {name} {old.get(name)}, not {value}; choose another "
                f"name, or delete {out.name} to begin again"
            )


def _cells(row: Row, columns: list[str]) -> dict[str, Any]:
    """Column -> cell; None is empty."""
    cells = dict.fromkeys(columns) | row
    for place, best in enumerate(cells.pop("top", ()), start=1):
        end = f"_{place}" if place > 1 else ""
        cells |= {f"{name}{end}": value for name, value in best.items()}
    return cells


class Lines:
    """CSV or JSON Lines; a row is a line. `done` rows are in the file."""

    def __init__(self, out: Path, columns: list[str], *, spreadsheet: bool = False) -> None:
        self._out, self._columns, self._spreadsheet = out, columns, spreadsheet
        self._is_csv = out.suffix == ".csv"
        with naming(out), out.open("ab+") as file:
            file.seek(0)
            rows, size = -self._is_csv, 0
            for line in file:
                if line.endswith(b"\n"):
                    rows, size = rows + 1, size + len(line)
            file.truncate(size)
            if rows < 0:
                file.write(_csv_line(columns))
        self.done = max(rows, 0)

    def add(self, rows: list[Row]) -> None:
        """Writes the next rows."""
        cells = [_cells(row, self._columns) for row in rows]
        if self._is_csv:
            shown = for_spreadsheet if self._spreadsheet else list
            lines = [_csv_line(shown(_texts(row.values()))) for row in cells]
        else:
            lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in cells]
        with naming(self._out), self._out.open("ab") as file:
            file.write(b"".join(lines))

    def finish(self) -> None:
        """Does nothing: all rows are written."""


def _texts(cells: Iterable[Any]) -> list[Any]:
    return ["|".join(cell) if isinstance(cell, list) else cell for cell in cells]


def _csv_line(cells: list[Any]) -> bytes:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return f"{printable_name(line.getvalue())}\n".encode()


def table_of(rows: list[Row], columns: list[str]) -> "pyarrow.Table":
    """The rows as a table of Arrow, of types that do not depend on their cells."""
    import pyarrow

    number, text = pyarrow.float32(), pyarrow.string()
    kinds = {"features": pyarrow.list_(number), "labels": pyarrow.list_(text)}
    kinds |= {"set": kinds["labels"], "unknown": pyarrow.bool_()}
    kinds |= {name: number for name in columns if "probability" in name}
    schema = pyarrow.schema([(name, kinds.get(name, text)) for name in columns])
    return pyarrow.Table.from_pylist([_cells(row, columns) for row in rows], schema)


class Parts:
    """A folder of Parquet files, named after the position of their first row. `done` rows are in
    them."""

    def __init__(self, out: Path, columns: list[str]) -> None:
        from pyarrow import parquet

        self._out, self._columns = out, columns
        self._rows: list[Row] = []
        remove_orphans(writable(out, "--out"))
        self.done, parts = 0, set(out.glob("part-*.parquet"))
        while (part := self._part()) in parts:
            parts.remove(part)
            self.done += parquet.read_metadata(part).num_rows
        for part in parts:  # behind one that was deleted
            part.unlink()

    def add(self, rows: list[Row]) -> None:
        """Takes the next rows, and writes those that it has when they are a part."""
        self._rows += rows
        if len(self._rows) >= PART_ROWS:
            self.finish()

    def finish(self) -> None:
        """Writes the last rows."""
        from pyarrow import parquet

        if not self._rows:
            return
        with atomic(self._part()) as temporary:
            parquet.write_table(table_of(self._rows, self._columns), temporary)
        self.done, self._rows = self.done + len(self._rows), []

    def _part(self) -> Path:
        return self._out / f"part-{self.done:010}.parquet"
