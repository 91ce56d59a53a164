"""The evaluation at the end of a run: figures and report.html.

Shapes: n images, k classes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from vit.extensions.reports import figures
from vit.extensions.reports.drawing import png, svg
from vit.extensions.reports.figures import WrongImage
from vit.extensions.reports.intervals import wilson_interval
from vit.extensions.reports.pictures import (
    LARGE,
    error_cells,
    opened,
    picture,
    pictured,
    right_examples,
)
from vit.extensions.reports.reliability import Reliability, reliability
from vit.extensions.reports.report import SPLIT_NAMES, write_page
from vit.extensions.reports.scores import ClassScores, class_scores, confusion_matrix, errors
from vit.extensions.reports.wording import commands, percent
from vit.preprocessing import Preprocess
from vit.runs.predictions import Predictions
from vit.writing import write_bytes

NUM_WORST = 20
THUMBNAIL, SEEN = 320, 160
"""Longer side of an image in worst.png, and of what the model looked at, in pixels."""
LEVELS = (0.05, 0.25, 0.5)
"""Shares of a class up to which a cell of the confusion has a colour."""
SHOWN_PAIRS = 8
"""Cells of the confusion whose pictures stand beside it."""
MAX_CONFUSION = 2000
"""Maximum number of classes; larger k x k tables cost memory and are not readable."""
CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""For which the report says what a tree of classes answers."""
SHOWN_SHARES = (100, 95, 90, 80, 70, 50)
"""Percent of images answered, in the table below the curve."""
WEAKEST = 10
"""Classes in the short table; if there are more than twice as many, the full one is folded."""

Look = Callable[[Image.Image, int], Image.Image | None]
"""Draws what a model looked at, given an RGB image and the class it said; None if it cannot."""


class Glance(Protocol):
    """A row of the table `glances`."""

    def __call__(self, model: Any, preprocess: Preprocess, /) -> tuple[str, Look] | None:
        """The name of a method, and what draws it; None for a model that it cannot explain."""
        ...


def write_results(
    run_dir: Path,
    *,
    split: str,
    classes: Sequence[str],
    predictions: Predictions,
    open_image: Callable[[int], Image.Image],
    thresholds: np.ndarray | None = None,
    look: tuple[str, Look] | None = None,
    first: Sequence[tuple[Image.Image, str]] = (),
) -> None:
    """Writes the figures and report.html of one evaluation to `run_dir`.

    Reads summary.json, config.yaml and metrics.csv of the run. `open_image` takes an entry of
    `predictions.indices`; an image that cannot be opened becomes an empty frame. `thresholds`
    (k,): probabilities above which a class of multi-label data is predicted. `look`: a method's
    name, and a function that draws what the model looked at in an error. `first`: images of the
    first training batch, with their labels.
    """
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    scores = class_scores(predictions, len(classes), thresholds)
    mistakes = errors(predictions, thresholds)
    wrong = [_wrong_image(predictions, error, open_image, look) for error in mistakes[:NUM_WORST]]
    title = _worst_title(len(mistakes), len(predictions), split)
    write_bytes(run_dir / "worst.png", png(figures.worst(wrong, classes, title)))
    groups, confusion = _reliability(predictions), _confusion(run_dir, predictions, classes)
    headline, metrics = _headline(summary, predictions, scores, split, groups)
    write_page(
        run_dir,
        summary,
        metrics,
        len(predictions),
        kind=f"{SPLIT_NAMES[split].lower()} results",
        about=_about(summary, len(classes)),
        headline=headline,
        scored=True,
        multilabel=predictions.multilabel,
        classes=classes,
        confusion=confusion,
        **_pictures(predictions, mistakes, wrong, confusion, open_image, thresholds),
        answers=_answers(predictions),
        **_confidence(summary, predictions, groups),
        refusing=_refusing(summary),
        looked_by=look[0] if look and any(item.seen for item in wrong) else "",
        first=first and [(each, picture(image)) for image, each in first],
        commands=commands(run_dir),
        **_class_tables(scores, classes),
    )


def _pictures(
    predictions: Predictions,
    mistakes: list[tuple[int, int, float]],
    wrong: list[WrongImage],
    confusion: dict[str, Any] | None,
    open_image: Callable[[int], Image.Image],
    thresholds: np.ndarray | None,
) -> dict[str, Any]:
    """Errors, cells and right examples of the page, and the pictures of their rows."""
    shown = confusion["shown"] if confusion else []
    cells = error_cells(predictions, mistakes, shown) if confusion else {}
    around = [k for item in wrong for k in (*item.true[:1], item.predicted)]
    examples = right_examples(predictions, [*shown, *around], thresholds)
    rows = [*pictured(cells), *(row for rows in examples.values() for row in rows)]
    images = {item.row: item.image for item in wrong}
    gallery = {row: image and picture(image, LARGE) for row, image in images.items()}
    for row in rows:
        if row not in gallery:
            image = opened(open_image, int(predictions.indices[row]))
            gallery[row] = image and picture(image)
    gallery = {row: each for row, each in gallery.items() if each is not None}
    return {
        "wrong": wrong,
        "num_wrong": len(mistakes),
        "cells": cells | {(k, k): examples[k] for k in shown if k in examples},
        "pairs": list(cells)[:SHOWN_PAIRS],
        "examples": {k: [row for row in rows if row in gallery] for k, rows in examples.items()},
        "gallery": gallery,
        "names": predictions.names,
    }


def _about(summary: dict[str, Any], classes: int) -> str:
    counts = ", ".join(f"{name} {n:,}" for name, n in summary["images"].items() if n)
    return f"{classes:,} classes · images: {counts} · {summary['parameters']:,} parameters"


def _wrong_image(
    predictions: Predictions,
    error: tuple[int, int, float],
    open_image: Callable[[int], Image.Image],
    look: tuple[str, Look] | None,
) -> WrongImage:
    row, predicted, probability = error
    image, seen = opened(open_image, int(predictions.indices[row])), None
    if image is not None:
        if look is not None and (seen := look[1](image, predicted)) is not None:
            seen.thumbnail((SEEN, SEEN))
        image.thumbnail((THUMBNAIL, THUMBNAIL))  # twenty full-size photos would fill the memory
    return WrongImage(
        row=row,
        image=image,
        seen=seen,
        name=predictions.names[row],
        true=predictions.classes_of(row),
        predicted=predicted,
        probability=probability,
    )


def _worst_title(num_wrong: int, num_images: int, split: str) -> str:
    count = f"{num_wrong:,}" if num_wrong else "No"
    errors = f"{count} error{'s' * (num_wrong != 1)} in {num_images:,} {split} images"
    return errors + (f"; the {NUM_WORST} most confident" if num_wrong > NUM_WORST else "")


def _headline(
    summary: Mapping[str, Any],
    predictions: Predictions,
    scores: ClassScores,
    split: str,
    groups: Reliability,
) -> tuple[tuple[str, str, str], dict[str, float]]:
    """Name, value and note of the main result, and the metrics that they do not say."""
    n, hits, metrics = len(predictions), int(predictions.hits().sum()), dict(summary["metrics"])
    if scores.average_precision is not None:
        name, key, defined = "mean average precision", "map", scores.average_precision
        defined = defined[scores.count > 0]
        value = float(defined.mean()) if len(defined) else float("nan")
        note = (
            "Mean over the classes of average precision. The most probable class is right for "
            f"{percent(hits / n, n)} of the images."
        )
    else:
        name, key, value = "accuracy", "acc1", hits / n
        low, high = (percent(end, n) for end in wilson_interval(hits, n))
        note = f"{hits:,} right, {n - hits:,} wrong; 95 % interval {low} to {high} (Wilson)."
    if f"{split}/ece" not in metrics:  # of several labels
        scaled = (summary.get("confidence") or {"temperature": 1})["temperature"] != 1
        metrics[f"{split}/ece_scaled" if scaled else f"{split}/ece"] = groups.error
    for again in (f"{split}/nll", f"{split}/nll_scaled"):  # the loss, perhaps
        if f"{metrics.get(again, 0):.3g}" == f"{metrics.get(f'{split}/loss', 0):.3g}":
            metrics.pop(again, None)
    metrics.pop(f"{split}/{key}", None)
    for other in SPLIT_NAMES:
        if (score := metrics.pop(f"{other}/{key}", None)) is not None:
            note += f" {SPLIT_NAMES[other]}: {percent(score, n)}."
    return (f"{SPLIT_NAMES[split]} {name}", percent(value, n), note), metrics


def _class_tables(scores: ClassScores, classes: Sequence[str]) -> dict[str, Any]:
    """Head and rows of the table of classes, and the weakest of many."""
    head, columns = ["class"], []
    if scores.average_precision is not None and scores.threshold is not None:
        head += ["average precision", "threshold"]
        areas = [percent(area) for area in scores.average_precision]
        columns += [areas, [f"{threshold:.3f}" for threshold in scores.threshold]]
    head += ["precision", "recall", "F1", "images"]
    columns += [[percent(x) for x in c] for c in (scores.precision, scores.recall, scores.f1)]
    columns.append([f"{count:,}" for count in scores.count])
    rows = list(zip(classes, *columns, strict=True))
    weakest = 0
    if len(classes) > 2 * WEAKEST:
        rows, weakest = [rows[k] for k in np.argsort(scores.f1, kind="stable")], WEAKEST
    return {"class_head": head, "class_rows": rows, "weakest": weakest}


def _confusion(
    run_dir: Path, predictions: Predictions, classes: Sequence[str]
) -> dict[str, Any] | None:
    """The classes and counts of the matrix, of which it writes confusion.png."""
    if predictions.multilabel or len(classes) > MAX_CONFUSION:
        return None
    matrix = confusion_matrix(predictions.labels, predictions.top_classes[:, 0], len(classes))
    write_bytes(run_dir / "confusion.png", png(figures.confusion(matrix, classes), crop=True))
    shown = figures.most_confused_classes(matrix)
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    counts, levels = matrix[np.ix_(shown, shown)], 1 + np.digitize(share, LEVELS, right=True)
    return {
        "shown": shown,
        "counts": counts.tolist(),
        "levels": levels[np.ix_(shown, shown)].tolist(),
        "upright": max(len(classes[k]) for k in shown) > 3,
    }


def _answers(predictions: Predictions) -> tuple[list[str], list[tuple[str, ...]]] | None:
    """Head and rows: the shares answered with each level of a tree, and those that are right."""
    values, hits = predictions.level_probabilities, predictions.level_hits
    if values is None or hits is None:
        return None
    depth, rows = values.shape[1], []
    for confidence in CONFIDENCES:
        level = (values > confidence).sum(1)  # the deepest one above it, from 1; 0 if none is
        shares = np.bincount(level, minlength=depth + 1) / len(level)
        right = hits[level > 0, level[level > 0] - 1]
        shares = [*shares[:0:-1], shares[0], right.mean() if len(right) else np.nan]
        rows.append((f"{confidence:g}", *(percent(share, len(level)) for share in shares)))
    above = [f"level {level}" for level in range(depth - 1, 0, -1)]
    return ["--confidence", "a class", *above, "no answer", "answers right"], rows


def _confidence(
    summary: Mapping[str, Any], predictions: Predictions, groups: Reliability
) -> dict[str, Any]:
    """Source of the stated confidence, its reliability, and the sets."""
    fitted = summary.get("confidence") or {"temperature": 1}
    about = "Probabilities are the model's own: no images were held out to fit a temperature to."
    if "images" in fitted:
        about = "Probabilities are the model's own: no temperature is better for "
        if fitted["temperature"] != 1:
            about = f"Probabilities are of logits / {fitted['temperature']:.3g}, fitted to "
        about += f"{fitted['images']:,} {fitted['measured_on']}."
    sets = [
        (f"{row['coverage']:g}", percent(row["holding"]), f"{row['classes']:.2f}")
        for row in predictions.sets
    ]
    drawn = svg(figures.reliability(groups), "Reliability diagram")
    return {"measured": about, "sets": sets, "groups": _group_rows(groups), "curve": drawn}


def _refusing(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plot of accuracy by share answered, and some of its numbers; None if not measured."""
    unknown = summary.get("unknown")
    if not unknown:
        return None
    accuracies, images = unknown["accuracies"], unknown["images"]
    rows = [(f"{n} %", percent(accuracies[n - 1], images)) for n in SHOWN_SHARES]
    drawn = svg(figures.answered(accuracies), "Accuracy by share answered")
    return {"plot": drawn, "rows": rows}


def _reliability(predictions: Predictions) -> Reliability:
    """Reliability of the most probable class, or of all classes of multi-label data."""
    if predictions.multilabel:
        labels = (predictions.labels > 0).ravel()
        return reliability(predictions.probabilities().ravel(), labels)
    return reliability(predictions.top_probabilities[:, 0], predictions.hits())


def _group_rows(groups: Reliability) -> list[tuple[str, ...]]:
    """The numbers of the reliability diagram, one row per bin that is not empty."""
    columns = (groups.low, groups.high, groups.count, groups.confidence, groups.hits)
    rows = []
    for low, high, count, confidence, hits in zip(*columns, strict=True):
        bounds = f"{100 * low:.0f} to {100 * high:.0f}\N{NO-BREAK SPACE}%"
        rows.append((bounds, f"{count:,}", percent(confidence), percent(hits / count)))
    return rows
