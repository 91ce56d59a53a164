"""report.html: the result of one evaluation.

Accuracy, curves, classes, confusion, calibration, most confident errors, commands to use the model,
and how it was trained.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from vit.reports import figures
from vit.reports.curves import Row, curves, panels_of
from vit.reports.drawing import DARK, LIGHT, Theme, png
from vit.reports.figures import WrongImage
from vit.reports.page import (
    Card,
    beside,
    cards,
    code,
    facts,
    folded,
    heading,
    headline,
    page,
    picture,
    section,
    table,
    text,
    title,
)
from vit.reports.scores import ClassScores, most_confused, wilson_interval
from vit.reports.wording import commands, flat, percent

if TYPE_CHECKING:
    from vit.calibration import Reliability  # imports torch

WEAKEST = 10
"""Classes in the short table; if there are more than twice as many, the full one is folded."""

LONG = 14
"""Rows of a table; longer ones, such as the fields of the model, are folded."""

METRIC_NAMES = {
    "acc1": "Accuracy",
    "acc5": "Accuracy, top 5",
    "map": "Mean average precision",
    "f1": "Macro F1",
    "exact": "All classes right",
    "ece": "Expected calibration error",
    "constant_acc1": "Accuracy of the best constant prediction",
    "loss": "Loss",
    "constant_loss": "Loss of the best constant prediction",
}
"""Metric name without the split -> title. All but the losses are fractions."""

SPLIT_NAMES = {"train": "Training", "val": "Validation", "test": "Test"}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Contents of the report; None and empty fields are skipped. k classes."""

    run_dir: Path
    split: str
    classes: Sequence[str]
    multilabel: bool
    summary: Mapping
    """Content of summary.json."""
    config: str
    """Text of config.yaml."""
    history: Sequence[Row]
    num_images: int
    num_hits: int
    """Number of images whose most probable class is correct."""
    scores: ClassScores | None
    mean_average_precision: float | None
    """Multi-label only."""
    class_bars: tuple[np.ndarray, str] | None
    """Multi-label only: one value in [0, 1] per class, (k,), and its name."""
    thresholds: np.ndarray | None = None
    """Multi-label only: (k,) probabilities above which a class is predicted; `class_bars` is then
    average precision."""
    matrix: np.ndarray | None
    """Single-label only: (k, k) counts, true by predicted class; None for too many classes."""
    calibration: "Reliability | None"
    wrong: Sequence[WrongImage]
    wrong_title: str
    looked_by: str = ""
    """The method that drew what the model looked at in wrong images."""


def render(findings: Findings) -> str:
    """The page, as HTML."""
    name = findings.run_dir.resolve().name
    split = SPLIT_NAMES.get(findings.split, findings.split)
    return page(
        f"{name} · {split.lower()} results",
        [
            title(name, _subtitle(findings)),
            _headline(findings, split),
            section("Metrics", metrics_table(findings.summary.get("metrics"), findings.num_images)),
            section("Training", training_curves(findings.history)),
            section("Classes", *_classes(findings)),
            section("Confusion", _confusion(findings)),
            section("Calibration", _calibration(findings)),
            section("Most confident errors", *_wrong(findings)),
            section("Use this model again", *_commands(findings.run_dir)),
            section("How it was made", *origin(findings.summary, findings.config)),
        ],
    )


def _subtitle(findings: Findings) -> str:
    model, parameters = findings.summary.get("model"), findings.summary.get("parameters")
    parts = [
        model if isinstance(model, str) else "",
        f"{parameters:,} parameters" if isinstance(parameters, int) else "",
        f"{len(findings.classes):,} classes",
        f"{findings.num_images:,} {findings.split} images",
    ]
    return " · ".join(part for part in parts if part)


def _headline(findings: Findings, split: str) -> str:
    n, hits = findings.num_images, findings.num_hits
    low, high = wilson_interval(hits, n)
    interval = (
        f"95 % confidence interval {percent(low, n)} to {percent(high, n)} (Wilson), n = {n:,}"
    )
    if findings.mean_average_precision is not None:
        note = (
            f"Mean over the classes of average precision, n = {n:,}. The most probable class is "
            f"right for {percent(hits / n, n)} of the images."
        )
        value = percent(findings.mean_average_precision, n)
        return headline(f"{split} mean average precision", value, note)
    if findings.multilabel:
        return headline(
            f"{split} images whose most probable class is right", percent(hits / n, n), interval
        )
    note = f"{interval}; {n - hits:,} wrong."
    return headline(f"{split} accuracy", percent(hits / n, n), note)


def metrics_table(metrics: Mapping[str, float] | None, num_images: int) -> str:
    """One row per metric, one column per split."""
    values = {
        key: value
        for key, value in (metrics or {}).items()
        if isinstance(value, int | float) and value == value
    }
    splits = _ordered({key.rpartition("/")[0] for key in values}, SPLIT_NAMES)
    names = _ordered({key.rpartition("/")[2] for key in values}, METRIC_NAMES)

    def cell(split: str, name: str) -> str:
        value = values.get(f"{split}/{name}" if split else name)
        if value is None:
            return ""
        share = name in METRIC_NAMES and not name.endswith("loss")
        return percent(value, num_images) if share else f"{value:.4g}"

    rows = [
        [METRIC_NAMES.get(name, name), *(cell(split, name) for split in splits)] for name in names
    ]
    return table(["", *(SPLIT_NAMES.get(split, split) for split in splits)], rows)


def _ordered(present: set[str], known: Mapping[str, str]) -> list[str]:
    """Known keys in the order of `known`, then the others by name."""
    return [key for key in known if key in present] + sorted(present - known.keys())


def training_curves(history: Sequence[Row]) -> str:
    """Every panel with data in the history."""
    return beside(
        *(
            both_themes(
                lambda theme, panel=panel: curves(history, [panel], theme), f"{panel} over training"
            )
            for panel in panels_of(history)
        )
    )


def _classes(findings: Findings) -> list[str]:
    scores, classes = findings.scores, findings.classes
    blocks = []
    if findings.class_bars is not None:
        values, label = findings.class_bars
        blocks.append(
            both_themes(lambda theme: figures.class_bars(values, classes, label, theme), label)
        )
    if scores is None:
        return blocks

    def rows(chosen: Sequence[int]) -> list[list[str]]:
        shares = (scores.precision, scores.recall, scores.f1)
        return [
            [
                classes[k],
                *_ranked(findings, k),
                *(percent(s[k]) for s in shares),
                f"{scores.count[k]:,}",
            ]
            for k in chosen
        ]

    head = ["class", "precision", "recall", "F1", "images"]
    if findings.thresholds is not None:
        head[1:1] = ["average precision", "threshold"]
    everything = table(head, rows(range(len(classes))))
    if len(classes) <= 2 * WEAKEST:
        return [*blocks, everything]
    lowest = [int(k) for k in np.argsort(scores.f1, kind="stable")[:WEAKEST]]
    return [
        *blocks,
        heading(f"The {WEAKEST} lowest in F1"),
        table(head, rows(lowest)),
        folded(f"All {len(classes):,} classes", everything),
    ]


def _ranked(findings: Findings, k: int) -> list[str]:
    """Cells with average precision and threshold of a class of multi-label data."""
    if findings.thresholds is None or findings.class_bars is None:
        return []
    return [percent(findings.class_bars[0][k]), f"{findings.thresholds[k]:.3f}"]


def _confusion(findings: Findings) -> str:
    matrix, classes = findings.matrix, findings.classes
    if matrix is None:
        return ""
    pairs = most_confused(matrix)
    rows = [
        [classes[true], classes[said], f"{count:,}", percent(count / matrix[true].sum())]
        for true, said, count in pairs
    ]
    listed = heading("Most confused") + table(
        ["true", "predicted", "images", "of the class"], rows, words=2
    )
    shown = figures.most_confused_classes(matrix)
    notes = []
    if len(shown) < len(classes):
        notes.append("Rows are fractions of all images of a class.")
    unread = [f"#{k} {classes[k]}" for k in shown if figures.legible_name(classes[k], k) == f"#{k}"]
    if unread:
        notes.append(f"No font could draw these names: {', '.join(unread)}.")
    # From here on the names need the full width of the page.
    width = "24rem" if len(shown) <= figures.WITH_NUMBERS else "100%"
    drawn = both_themes(
        lambda theme: figures.confusion(matrix, classes, theme), "Confusion matrix", crop=True
    )
    return beside(
        drawn + (text(" ".join(notes), quiet=True) if notes else ""),
        listed if rows else "",
        cell=width,
    )


def _calibration(findings: Findings) -> str:
    groups = findings.calibration
    if groups is None:
        return ""
    explained = (
        f"Expected calibration error {percent(groups.error)}: on average, this is how far the "
        "model's stated confidence is from the share of predictions that are right."
    )
    if findings.multilabel:
        explained += " A prediction is one class of one image."
    return beside(
        both_themes(lambda theme: figures.reliability(groups, theme), "Reliability diagram"),
        text(explained)
        + text(
            "Points below the diagonal are overconfident, points above it too modest. Vertical "
            "lines are 95 % Wilson intervals: long where a group holds few predictions.",
            quiet=True,
        )
        + folded("The groups", _groups(groups)),
        cell="20rem",
    )


def _groups(groups: "Reliability") -> str:
    """The numbers of the reliability diagram, one row per non-empty bin."""
    columns = (groups.low, groups.high, groups.count, groups.confidence, groups.hits)
    rows = [
        [
            f"{100 * low:.0f} to {100 * high:.0f}\N{NO-BREAK SPACE}%",
            f"{count:,}",
            percent(confidence),
            percent(hits / count),
        ]
        for low, high, count, confidence, hits in zip(*columns, strict=True)
    ]
    return table(["confidence", "predictions", "mean", "right"], rows)


def _wrong(findings: Findings) -> list[str]:
    def names(indices: Sequence[int]) -> str:
        return ", ".join(findings.classes[k] for k in indices) or "no class"

    shown = [
        Card(
            image=item.image,
            second=item.seen,
            said=findings.classes[item.predicted],
            share=percent(item.probability),
            true=f"true: {names(item.true)}",
            name=item.name,
        )
        for item in findings.wrong
    ]
    words = f"{findings.wrong_title}."
    if shown:
        words += " What the model said and how sure it was, then the truth, then the file."
    if any(item.seen is not None for item in findings.wrong):
        words += f" Below an image, what the model looked at ({findings.looked_by}): bright parts."
    if findings.multilabel:
        words += " An error is a class above its threshold that the image does not have."
    return [text(words), cards(shown)]


def _commands(run_dir: Path) -> list[str]:
    return [heading(purpose) + code(command) for purpose, command in commands(run_dir)]


def origin(summary: Mapping, config: str) -> list[str]:
    """The rest of summary.json: single values, then one table per group."""
    command = summary.get("command")
    shown = ("metrics", "classes", "per_class", "command")
    left = {key: value for key, value in summary.items() if key not in shown}
    groups: dict[str, Mapping] = {key: v for key, v in left.items() if isinstance(v, Mapping)}
    single = {key: value for key, value in left.items() if key not in groups}
    rows = {"run": flat(single), **{key: flat(value) for key, value in groups.items()}}
    short = {name: held for name, held in rows.items() if len(held) <= LONG}
    return [
        code(shlex.join(command) if isinstance(command, list) else command) if command else "",
        beside(
            *(heading(name.capitalize()) + facts(held) for name, held in short.items() if held),
            cell="18rem",
        ),
        *(folded(name.capitalize(), facts(rows[name])) for name in rows if name not in short),
        folded("config.yaml", code(config)) if config.strip() else "",
    ]


def both_themes(draw: Callable[[Theme], Figure], description: str, *, crop: bool = False) -> str:
    """The figure in the light and dark theme."""
    light, dark = (png(draw(theme), crop=crop) for theme in (LIGHT, DARK))
    return picture(light, dark, description)
