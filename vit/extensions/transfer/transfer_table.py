"""The result of `vit transfer` as Markdown and JSON: one row per data set."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vit.extensions.transfer.vtab import TASKS

VTAB = "vtab/"  # begins the names of its tasks


@dataclass(kw_only=True)
class Trial:
    """Run: a learning rate on the slice, or a seed on the test images."""

    lr: float
    seed: int
    score: float | None
    """Accuracy in [0, 1] (mean average precision if multi-label); None if diverged."""
    reason: str | None = None
    """Reason for a missing score."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    continued: bool = False
    """Interrupted, so that its times are those of the last part."""


@dataclass(kw_only=True)
class Row:
    """Row of the table: a data set."""

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
    def result(self) -> dict[str, Any]:
        """Mean, sample standard deviation (n - 1) and times over the runs, in JSON types."""
        scores = [trial.score for trial in self.final if trial.score is not None]
        runs = (*self.search, *self.final)
        return {
            "lr": self.lr,
            **_moments(scores),
            "scores": scores,
            "seconds": round(sum(trial.seconds for trial in runs), 2),
            "cpu_seconds": round(sum(trial.cpu_seconds for trial in runs), 2),
        }

    @property
    def remarks(self) -> list[str]:
        """Warnings and notes about the row."""
        remarks = list(self.notes)
        grid = [trial.lr for trial in self.search]
        if self.result["scores"] and self.lr in (grid[:1] + grid[-1:]):
            side = "smallest" if self.lr == grid[0] else "largest"
            remarks.append(
                f"{self.data}: the best learning rate is the {side} of the grid; a wider --lr-grid "
                "may do better"
            )
        for trial in (*self.search, *self.final):
            name = f"{self.data}: lr {trial.lr}, seed {trial.seed}"
            if trial.reason is not None:
                remarks.append(f"{name} failed: {trial.reason}")
            elif trial.continued:
                remarks.append(f"{name} was interrupted: its time is that of the last part")
        return remarks


def vtab_means(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Mean, deviation over the seeds and tasks of the groups of VTAB-1k and of all its tasks.

    Every task weighs the same. There is no mean of tasks with failed runs.
    """
    scores = {r.data.removeprefix(VTAB): r.result["scores"] for r in rows if VTAB in r.data}
    means: dict[str, dict[str, Any]] = {}
    for group in ("natural", "specialized", "structured", "all") if scores else ():
        names = [name for name, task in TASKS.items() if group in (task["group"], "all")]
        tasks = [scores[name] for name in names if name in scores]
        even = len(set(map(len, tasks))) == 1
        seeds = [statistics.mean(each) for each in zip(*tasks, strict=True)] if even else []
        means[group] = {**_moments(seeds), "tasks": len(tasks), "of": len(names)}
    return means


def to_json(rows: list[Row], about: Mapping[str, object]) -> str:
    """Results as JSON, with `about` in front."""
    entries = [{**asdict(row), **row.result, "notes": row.remarks} for row in rows]
    results = {**about, "rows": entries, "vtab": vtab_means(rows)}
    return json.dumps(results, indent=2, ensure_ascii=False) + "\n"


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
        result = row.result
        cells = (
            row.data if row.metric == "acc1" else f"{row.data} (mAP)",
            "-" if row.lr is None else row.lr,
            _spread(result),
            result["n"],
            " ".join(_percent(trial.score) for trial in row.final) or "-",
            *(f"{row.images[part]:,}" for part in ("train", "slice", "test")),
            f"{row.steps:,}",
            f"{result['seconds']:,.0f}",
            f"{result['cpu_seconds']:,.0f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    if means := vtab_means(rows):
        lines += ["", f"| VTAB-1k | tasks | mean test {score} |", "|---|---|---|"]
        groups = means.items()
        lines += [f"| {name} | {m['tasks']} of {m['of']} | {_spread(m)} |" for name, m in groups]
    tried = [(row.data, trial) for row in rows for trial in row.search]
    if tried:
        lines += ["", f"| data set | lr tried | slice {score} |", "|---|---|---|"]
        lines += [f"| {data} | {t.lr} | {_percent(t.score)} |" for data, t in tried]
    remarks = [f"- {remark}" for row in rows for remark in row.remarks]
    return "\n".join([*lines, *([""] if remarks else []), *remarks]) + "\n"


def _moments(scores: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.mean(scores) if scores else None,
        "std": statistics.stdev(scores) if len(scores) > 1 else None,
        "n": len(scores),
    }


def _spread(result: Mapping[str, float | None]) -> str:
    spread = "" if result["std"] is None else f" ± {_percent(result['std'])}"
    return _percent(result["mean"]) + spread


def _percent(share: float | None) -> str:
    return "failed" if share is None else f"{100 * share:.2f}"
