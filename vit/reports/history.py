"""metrics.csv of a run, read. Imports nothing heavy: `vit runs` uses it."""

import csv
from contextlib import suppress
from math import isfinite
from pathlib import Path

Row = dict[str, float]


def read_history(path: Path) -> list[Row]:
    """The finite numbers in the rows of metrics.csv; empty without a file.

    Damaged rows are left out, and one that is being written, without its line break.
    """
    rows: list[Row] = []
    if not path.is_file():
        return rows
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        for row in csv.DictReader(line for line in file if line.endswith("\n")):
            with suppress(TypeError, ValueError):
                rows.append({column: float(cell) for column, cell in row.items() if cell})
    return [{column: x for column, x in row.items() if isfinite(x)} for row in rows]
