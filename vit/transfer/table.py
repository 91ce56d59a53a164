"""The result of `vit transfer` as Markdown, CSV and JSON: one row per data set."""

import csv
import io
import json
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Trial:
    """One cell: a learning rate on the slice, or a seed on the test images."""

    lr: float
    seed: int
    score: float | None
    """Accuracy in [0, 1] (mean average precision if multi-label); None if diverged."""
    reason: str | None = None
    """Reason for a missing score."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    continued: bool = False
    """Whether it was interrupted; its times are then those of the last part."""


@dataclass(kw_only=True)
class Row:
    """One data set."""

    data: str
    metric: str
    steps: int
    images: dict[str, int]
    """Numbers of train (of the final runs), slice (part of it) and test images."""
    search: list[Trial] = field(default_factory=list)
    final: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def lr(self) -> float | None:
        """The best learning rate on the slice, the smallest of equal ones; None if all diverged."""
        scored = [trial for trial in self.search if trial.score is not None]
        if not scored:
            return self.final[0].lr if self.final else None
        return max(scored, key=lambda trial: (trial.score or 0.0, -trial.lr)).lr

    @property
    def scores(self) -> list[float]:
        """Scores of the seeds that did not diverge, in order."""
        return [trial.score for trial in self.final if trial.score is not None]

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.scores) if self.scores else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation (n - 1); None for fewer than two seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def seconds(self) -> float:
        """Total training time of all cells, wall-clock."""
        return round(sum(trial.seconds for trial in (*self.search, *self.final)), 2)

    @property
    def cpu_seconds(self) -> float:
        return round(sum(trial.cpu_seconds for trial in (*self.search, *self.final)), 2)

    @property
    def remarks(self) -> list[str]:
        """Warnings and notes about the row."""
        remarks = list(self.notes)
        grid = [trial.lr for trial in self.search]
        if self.scores and self.lr in (grid[:1] + grid[-1:]):
            side = "smallest" if self.lr == grid[0] else "largest"
            remarks.append(
                f"{self.data}: the best learning rate is the {side} of the grid; a wider --lr-grid "
                "may do better"
            )
        for trial in (*self.search, *self.final):
            what = f"{self.data}: lr {trial.lr}, seed {trial.seed}"
            if trial.reason is not None:
                remarks.append(f"{what} failed: {trial.reason}")
            elif trial.continued:
                remarks.append(f"{what} was interrupted: its time is that of the last part")
        return remarks


def document(rows: list[Row], about: dict[str, Any]) -> dict[str, Any]:
    """All results, in JSON types."""
    entries = [
        {
            **asdict(row),
            "lr": row.lr,
            "mean": row.mean,
            "std": row.std,
            "n": len(row.scores),
            "scores": row.scores,
            "seconds": row.seconds,
            "cpu_seconds": row.cpu_seconds,
            "notes": row.remarks,
        }
        for row in rows
    ]
    return {**about, "rows": entries}


COLUMNS = (
    "data",
    "metric",
    "lr",
    "mean",
    "std",
    "n",
    "scores",
    "train_images",
    "slice_images",
    "test_images",
    "steps",
    "seconds",
    "cpu_seconds",
    "slice_scores",
)


def to_csv(rows: list[Row]) -> str:
    """Numbers in full precision; lists are separated by blanks.

    The only user text is the name of a data set, which starts with a letter or a digit, so that no
    spreadsheet interprets it as a formula.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        tried = (f"{t.lr}:{'failed' if t.score is None else t.score}" for t in row.search)
        values = {
            "scores": " ".join(map(str, row.scores)),
            "n": len(row.scores),
            "slice_scores": " ".join(tried),
            **{f"{name}_images": number for name, number in row.images.items()},
        }
        writer.writerow({name: values.get(name, getattr(row, name, "")) for name in COLUMNS})
    return file.getvalue()


def to_json(rows: list[Row], about: dict[str, Any]) -> str:
    return json.dumps(document(rows, about), indent=2, ensure_ascii=False) + "\n"


def to_markdown(rows: list[Row]) -> str:
    """The results, their grids, and remarks."""
    kinds = {row.metric for row in rows}
    score = {"acc1": "top-1, %", "map": "mAP, %"}[kinds.pop()] if len(kinds) == 1 else "score, %"
    lines = [
        f"| data set | lr | test {score} | n | each seed | train | slice | test | steps "
        "| seconds | CPU seconds |",
        "|" + "---|" * 11,
    ]
    for row in rows:
        cells = (
            row.data if row.metric == "acc1" else f"{row.data} (mAP)",
            "-" if row.lr is None else row.lr,
            _spread(row),
            len(row.scores),
            " ".join(_percent(trial.score) for trial in row.final) or "-",
            *(f"{row.images[part]:,}" for part in ("train", "slice", "test")),
            f"{row.steps:,}",
            f"{row.seconds:,.0f}",
            f"{row.cpu_seconds:,.0f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    tried = [(row.data, trial) for row in rows for trial in row.search]
    if tried:
        lines += ["", f"| data set | lr tried | slice {score} |", "|---|---|---|"]
        lines += [f"| {data} | {t.lr} | {_percent(t.score)} |" for data, t in tried]
    remarks = [f"- {remark}" for row in rows for remark in row.remarks]
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def _spread(row: Row) -> str:
    if row.std is None:
        return _percent(row.mean)
    return f"{_percent(row.mean)} ± {_percent(row.std)}"


def _percent(share: float | None) -> str:
    return "failed" if share is None else f"{100 * share:.2f}"
