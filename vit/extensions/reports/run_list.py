"""The runs below a folder, with their scores, and the history of one."""

import csv
from contextlib import suppress
from datetime import datetime
from math import isfinite
from pathlib import Path

from vit.runs.records import CONFIG, SUMMARY, is_run, read_summary

SCORES = ("acc1", "map", "loss")
"""Metrics of a list, the first one that a run has."""
Row = dict[str, float]


def list_runs(folder: Path) -> list[dict[str, str]]:
    """The runs at and below `folder`, the last changed one first.

    `run`, its directory; `score`, such as "test acc1 0.9231", the last of metrics.csv for an
    unfinished run; `date` of the last change; `state`.
    """
    runs = {path.parent for path in folder.rglob(CONFIG) if is_run(path.parent)}
    return sorted(map(_entry, runs), key=lambda entry: entry["date"], reverse=True)


def _entry(run: Path) -> dict[str, str]:
    summary, state, splits = read_summary(run), "finished", ("test", "val")
    metrics: dict[str, float] = summary.get("metrics") or {}
    if summary.get("finished") is not True:
        splits, rows = ("val",), read_history(run / "metrics.csv")
        metrics = {name: value for row in rows for name, value in row.items()}
        state = f"at step {metrics['step'] + 1:,.0f}" if "step" in metrics else "no step yet"
        if "step" not in metrics and any((run / "checkpoints").glob("*.ckpt")):
            state = "saved before its first log"
    wanted = [f"{split}/{score}" for split in splits for score in SCORES]
    names = [name for name in wanted if name in metrics]
    score = f"{names[0].replace('/', ' ')} {metrics[names[0]]:.4f}" if names else "-"
    files = [path for path in (run / CONFIG, run / SUMMARY, run / "metrics.csv") if path.is_file()]
    changed = max(path.stat().st_mtime for path in files)
    date = datetime.fromtimestamp(changed).isoformat()
    return {"run": str(run), "score": score, "date": date, "state": state}


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
