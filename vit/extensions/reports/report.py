"""The page of every run: metrics, curves, commands, and how it was made."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vit.extensions.reports.curves import curves, panels_of
from vit.extensions.reports.drawing import png, svg
from vit.extensions.reports.page import page
from vit.extensions.reports.run_list import read_history
from vit.extensions.reports.wording import flat, percent
from vit.writing import write_bytes, write_text

METRIC_NAMES = {
    "acc1": "Accuracy",
    "acc5": "Accuracy, top 5",
    **{f"acc1_level{level}": f"Accuracy, level {level} of the tree" for level in range(1, 10)},
    "map": "Mean average precision",
    "f1": "Macro F1",
    "recall": "Mean recall of the classes",
    "exact": "All classes right",
    "ece": "Expected calibration error",
    "ece_scaled": "Expected calibration error, after temperature",
    "nll": "Negative log-likelihood",
    "nll_scaled": "Negative log-likelihood, after temperature",
    "constant_acc1": "Always the most frequent class",
    "loss": "Loss",
    "constant_loss": "Loss of the best constant prediction",
}
"""Metric name without the split -> title. All but the losses and likelihoods are fractions."""

ELSEWHERE = (
    *("metrics", "classes", "command", "finished", "finishers", "unknown", "confidence"),
    *("images", "parameters", "split", "headline"),
)
"""Keys of summary.json that the page says elsewhere, or not at all."""
SAID = {"score", "by size train images", "by size val images", "by size steps"}
"""Rows that repeat others."""
TITLES = {"splits": "Digests of the images"}

SPLIT_NAMES = {"train": "Training", "val": "Validation", "test": "Test"}


def write_page(
    run_dir: Path,
    summary: Mapping[str, Any],
    metrics: Mapping[str, float],
    num_images: int,
    *,
    scored: bool = False,
    colours: Markup | None = None,
    **values: Any,
) -> None:
    """Writes curves.png and report.html of a run.

    `metrics`: those that the headline does not say; `num_images` sets their decimals.
    `scored` runs have classes, confusion, calibration and errors; `values` are for report.html.
    """
    history = read_history(run_dir / "metrics.csv")
    panels = list(panels_of(history))
    if panels:
        write_bytes(run_dir / "curves.png", png(curves(history, panels)))
    plots = [svg(curves(history, [panel]), f"{panel} over training") for panel in panels]
    html = page(
        "reports/report.html",
        name=run_dir.resolve().name,
        metrics=metrics_table(metrics, num_images),
        curves=plots,
        scored=scored,
        colours=colours,
        command=summary["command"],
        origin=origin(summary),
        config=(run_dir / "config.yaml").read_text("utf-8"),
        **values,
    )
    write_text(run_dir / "report.html", html)


def metrics_table(
    metrics: Mapping[str, float], num_images: int
) -> tuple[list[str], list[list[str]]]:
    """Head and rows: one row per metric, one column per split."""
    splits = _ordered({key.rpartition("/")[0] for key in metrics}, SPLIT_NAMES)
    names = _ordered({key.rpartition("/")[2] for key in metrics}, METRIC_NAMES)

    def cell(split: str, name: str) -> str:
        value = metrics.get(f"{split}/{name}")
        if value is None:
            return ""
        share = name in METRIC_NAMES and "loss" not in name and "nll" not in name
        return percent(value, num_images) if share else f"{value:.4g}"

    rows = [
        [METRIC_NAMES.get(name, name), *(cell(split, name) for split in splits)] for name in names
    ]
    return ["", *(SPLIT_NAMES[split] for split in splits)], rows


def _ordered(present: set[str], titles: Mapping[str, str]) -> list[str]:
    """Keys in the order of `titles`, then the others by name."""
    return [key for key in titles if key in present] + sorted(present - titles.keys())


def origin(summary: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]], bool]]:
    """(title, rows, true for folded) of what else summary.json says: single values, each group."""
    rest = {key: value for key, value in summary.items() if key not in ELSEWHERE}
    if rest.get("trained_parameters") == summary.get("parameters"):
        rest.pop("trained_parameters", None)
    groups = {key: value for key, value in rest.items() if isinstance(value, Mapping)}
    single = {key: value for key, value in rest.items() if key not in groups}
    tables = []
    for key, value in {"run": single, **groups}.items():
        if rows := [row for row in flat(value) if row[0] not in SAID]:
            tables.append((TITLES.get(key, key.capitalize()), rows, _folded(rows)))
    return tables


def _folded(rows: list[tuple[str, str]]) -> bool:
    """True for a long table, and for digests."""
    return len(rows) > 14 or any(re.fullmatch("[0-9a-f]{32,}", value) for _, value in rows)
