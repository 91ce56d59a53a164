"""report.html: what one evaluation found, in the order in which a reader asks.

How good, in which classes, confused with what, how far its probabilities can be trusted, which
images it got wrong, how to use it, and how it was made.
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
"""Classes in the short table; with more than twice as many the full one is folded away."""

LONG = 14
"""Facts in a table; longer ones, such as the fields of the model, are folded away."""

METRIC_NAMES = {
    "acc1": "Accuracy",
    "acc5": "Accuracy, top 5",
    "map": "Mean average precision",
    "f1": "Macro F1",
    "exact": "All classes right",
    "ece": "Expected calibration error",
    "constant_acc1": "Accuracy of the most frequent answer",
    "loss": "Loss",
    "constant_loss": "Loss of the best constant answer",
}
"""What follows the split in a metric's name -> its name here. All but the losses are shares."""

SPLIT_NAMES = {"train": "Training", "val": "Validation", "test": "Test"}


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the report is about; what is None or empty is left out of it. k classes."""

    run_dir: Path
    split: str
    classes: Sequence[str]
    multilabel: bool
    summary: Mapping
    """The content of summary.json."""
    config: str
    """The text of config.yaml."""
    history: Sequence[Row]
    num_images: int
    num_hits: int
    """Images whose most probable class is right."""
    scores: ClassScores | None
    mean_average_precision: float | None
    """Of a multi-label set."""
    class_bars: tuple[np.ndarray, str] | None
    """Of a multi-label set: a value in [0, 1] a class, (k,), and what it is."""
    matrix: np.ndarray | None
    """(k, k) counts, true by predicted class, of a single-label set; None of too many classes."""
    calibration: "Reliability | None"
    wrong: Sequence[WrongImage]
    wrong_title: str


def render(found: Findings) -> str:
    """The page, as HTML."""
    name = found.run_dir.resolve().name
    split = SPLIT_NAMES.get(found.split, found.split)
    return page(
        f"{name} · {split.lower()} results",
        [
            title(name, _subtitle(found)),
            _headline(found, split),
            section("Metrics", metrics_table(found.summary.get("metrics"), found.num_images)),
            section("Training", training_curves(found.history)),
            section("Classes", *_classes(found)),
            section("Confusion", _confusion(found)),
            section("Calibration", _calibration(found)),
            section("Most confident errors", *_wrong(found)),
            section("Use this model again", *_commands(found.run_dir)),
            section("How it was made", *origin(found.summary, found.config)),
        ],
    )


def _subtitle(found: Findings) -> str:
    model, parameters = found.summary.get("model"), found.summary.get("parameters")
    parts = [
        model if isinstance(model, str) else "",
        f"{parameters:,} parameters" if isinstance(parameters, int) else "",
        f"{len(found.classes):,} classes",
        f"{found.num_images:,} {found.split} images",
    ]
    return " · ".join(part for part in parts if part)


def _headline(found: Findings, split: str) -> str:
    n, hits = found.num_images, found.num_hits
    low, high = wilson_interval(hits, n)
    interval = (
        f"95 % confidence interval {percent(low, n)} to {percent(high, n)} (Wilson), n = {n:,}"
    )
    if found.mean_average_precision is not None:
        note = (
            f"Mean over the classes of average precision, n = {n:,}. The most probable class is "
            f"right for {percent(hits / n, n)} of the images."
        )
        value = percent(found.mean_average_precision, n)
        return headline(f"{split} mean average precision", value, note)
    if found.multilabel:
        return headline(
            f"{split} images whose most probable class is right", percent(hits / n, n), interval
        )
    note = f"{interval}; {n - hits:,} wrong."
    return headline(f"{split} accuracy", percent(hits / n, n), note)


def metrics_table(metrics: Mapping[str, float] | None, num_images: int) -> str:
    """One row a metric, one column a split."""
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
    """Those that are known in their own order, then the others by name."""
    return [key for key in known if key in present] + sorted(present - known.keys())


def training_curves(history: Sequence[Row]) -> str:
    """Every panel for which the history has values."""
    return beside(
        *(
            both_themes(
                lambda theme, panel=panel: curves(history, [panel], theme), f"{panel} over training"
            )
            for panel in panels_of(history)
        )
    )


def _classes(found: Findings) -> list[str]:
    scores, classes = found.scores, found.classes
    blocks = []
    if found.class_bars is not None:
        values, label = found.class_bars
        blocks.append(
            both_themes(lambda theme: figures.class_bars(values, classes, label, theme), label)
        )
    if scores is None:
        return blocks

    def rows(chosen: Sequence[int]) -> list[list[str]]:
        shares = (scores.precision, scores.recall, scores.f1)
        return [
            [classes[k], *(percent(s[k]) for s in shares), f"{scores.count[k]:,}"] for k in chosen
        ]

    head = ["class", "precision", "recall", "F1", "images"]
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


def _confusion(found: Findings) -> str:
    matrix, classes = found.matrix, found.classes
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
        notes.append("A row is a share of all images of its class, whatever was predicted.")
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


def _calibration(found: Findings) -> str:
    groups = found.calibration
    if groups is None:
        return ""
    explained = (
        f"Expected calibration error {percent(groups.error)}: on average, this is how far the "
        "model's stated confidence is from the share of predictions that are right."
    )
    if found.multilabel:
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
    """The numbers of the reliability diagram, one row a group that holds predictions."""
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


def _wrong(found: Findings) -> list[str]:
    def names(indices: Sequence[int]) -> str:
        return ", ".join(found.classes[k] for k in indices) or "no class"

    shown = [
        Card(
            image=item.image,
            said=found.classes[item.predicted],
            share=percent(item.probability),
            true=f"true: {names(item.true)}",
            name=item.name,
        )
        for item in found.wrong
    ]
    words = f"{found.wrong_title}."
    if shown:
        words += " What the model said and how sure it was, then the truth, then the file."
    if found.multilabel:
        words += " An error is a class of 50 % or more that the image does not have."
    return [text(words), cards(shown)]


def _commands(run_dir: Path) -> list[str]:
    return [heading(purpose) + code(command) for purpose, command in commands(run_dir)]


def origin(summary: Mapping, config: str) -> list[str]:
    """Everything else that summary.json holds: single facts, then a table a group."""
    command = summary.get("command")
    told = ("metrics", "classes", "per_class", "command")
    left = {key: value for key, value in summary.items() if key not in told}
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
    """The figure for both settings of the reader."""
    light, dark = (png(draw(theme), crop=crop) for theme in (LIGHT, DARK))
    return picture(light, dark, description)
