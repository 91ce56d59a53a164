"""The page of every run: metrics, curves, commands, and how it was made."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit.extensions.reports.curves import curves, panels_of
from vit.extensions.reports.drawing import png
from vit.extensions.reports.page import Plot, page, plot
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
    "constant_acc1": "Accuracy of the best constant prediction",
    "loss": "Loss",
    "constant_loss": "Loss of the best constant prediction",
}
"""Metric name without the split -> title. All but the losses and likelihoods are fractions."""

SPLIT_NAMES = {"train": "Training", "val": "Validation", "test": "Test"}


def write_page(
    run_dir: Path,
    summary: Mapping[str, Any],
    num_images: int,
    *,
    scored: bool = False,
    colours: Plot | None = None,
    **values: Any,
) -> None:
    """Writes curves.png and report.html of a run; `num_images` sets the decimals of its metrics.

    `scored` runs have classes, confusion, calibration and errors; `values` are for report.html.
    """
    history = read_history(run_dir / "metrics.csv")
    panels = list(panels_of(history))
    if panels:
        write_bytes(run_dir / "curves.png", png(curves(history, panels)))
    plots = [
        plot(lambda theme, panel=panel: curves(history, [panel], theme), f"{panel} over training")
        for panel in panels
    ]
    html = page(
        "reports/report.html",
        name=run_dir.resolve().name,
        metrics=metrics_table(summary["metrics"], num_images),
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


def origin(summary: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(title, rows) of the rest of summary.json: single values, then each group."""
    elsewhere = ("metrics", "classes", "command", "finished", "finishers", "unknown")
    rest = {key: value for key, value in summary.items() if key not in elsewhere}
    groups = {key: value for key, value in rest.items() if isinstance(value, Mapping)}
    single = {key: value for key, value in rest.items() if key not in groups}
    tables = [(key.capitalize(), flat(value)) for key, value in {"run": single, **groups}.items()]
    return [(title, rows) for title, rows in tables if rows]
