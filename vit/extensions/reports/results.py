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
from vit.extensions.reports.drawing import png
from vit.extensions.reports.figures import WrongImage
from vit.extensions.reports.intervals import wilson_interval
from vit.extensions.reports.lettering import drawable
from vit.extensions.reports.page import plot
from vit.extensions.reports.reliability import Reliability, reliability
from vit.extensions.reports.report import SPLIT_NAMES, write_page
from vit.extensions.reports.scores import (
    ClassScores,
    class_probabilities,
    class_scores,
    confusion_matrix,
    errors,
    most_confused,
)
from vit.extensions.reports.wording import commands, percent
from vit.preprocessing import Preprocess
from vit.runs.predictions import Predictions
from vit.writing import write_bytes

NUM_WORST = 20
THUMBNAIL = 320
"""Longer side of an image in the report, in pixels."""
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
) -> None:
    """Writes the figures and report.html of one evaluation to `run_dir`.

    Reads summary.json, config.yaml and metrics.csv of the run. `open_image` takes an entry of
    `predictions.indices`; an image that cannot be opened becomes an empty frame. `thresholds`
    (k,): probabilities above which a class of multi-label data is predicted. `look`: a method's
    name, and a function that draws what the model looked at in an error.
    """
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    scores = class_scores(predictions, len(classes), thresholds)
    mistakes = errors(predictions, thresholds)
    wrong = [_wrong_image(predictions, error, open_image, look) for error in mistakes[:NUM_WORST]]
    wrong_title = _worst_title(len(mistakes), len(predictions), split)
    write_bytes(run_dir / "worst.png", png(figures.worst(wrong, classes, wrong_title)))
    groups = _reliability(predictions)
    write_page(
        run_dir,
        summary,
        len(predictions),
        **_titles(summary, split, len(classes), len(predictions)),
        headline=_headline(predictions, scores, SPLIT_NAMES[split]),
        scored=True,
        multilabel=predictions.multilabel,
        classes=classes,
        bars=_bars(run_dir, scores, classes),
        confusion=_confusion(run_dir, predictions, classes),
        answers=_answers(predictions),
        groups=groups,
        **_confidence(summary, predictions, split),
        group_rows=_group_rows(groups),
        refusing=_refusing(summary),
        reliability=plot(lambda theme: figures.reliability(groups, theme), "Reliability diagram"),
        wrong=wrong,
        wrong_title=wrong_title,
        looked_by=look[0] if look and any(item.seen is not None for item in wrong) else "",
        commands=commands(run_dir),
        **_class_tables(scores, classes),
    )


def _titles(summary: dict[str, Any], split: str, classes: int, images: int) -> dict[str, str]:
    about = (
        f"{summary['parameters']:,} parameters · {classes:,} classes · {images:,} {split} images"
    )
    kind = f"{SPLIT_NAMES[split].lower()} results"
    return {"kind": kind, "about": about, "use_title": "Use this model again"}


def _wrong_image(
    predictions: Predictions,
    error: tuple[int, int, float],
    open_image: Callable[[int], Image.Image],
    look: tuple[str, Look] | None,
) -> WrongImage:
    row, predicted, probability = error
    seen = None
    try:
        image = open_image(int(predictions.indices[row])).convert("RGB")
        if look is not None and (seen := look[1](image, predicted)) is not None:
            seen.thumbnail((THUMBNAIL, THUMBNAIL))
        image.thumbnail((THUMBNAIL, THUMBNAIL))  # twenty full-size photos would fill the memory
    except (OSError, ValueError):  # a deleted file must not prevent the report
        image = None
    return WrongImage(
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


def _headline(predictions: Predictions, scores: ClassScores, split: str) -> tuple[str, str, str]:
    """Name, value and note of the main result."""
    n, hits = len(predictions), int(predictions.hits().sum())
    if scores.average_precision is not None:
        defined = scores.average_precision[scores.count > 0]
        mean = float(defined.mean()) if len(defined) else float("nan")
        note = (
            f"Mean over the classes of average precision, n = {n:,}. The most probable class is "
            f"right for {percent(hits / n, n)} of the images."
        )
        return f"{split} mean average precision", percent(mean, n), note
    low, high = wilson_interval(hits, n)
    recall, constant = scores.recall[scores.count > 0].mean(), scores.count.max() / n
    note = (
        f"95 % confidence interval {percent(low, n)} to {percent(high, n)} (Wilson), n = {n:,}; "
        f"{n - hits:,} wrong. Mean recall of the classes {percent(recall, n)}; always the most "
        f"frequent class would be right for {percent(constant, n)}."
    )
    return f"{split} accuracy", percent(hits / n, n), note


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
    many = len(classes) > 2 * WEAKEST
    weakest = np.argsort(scores.f1, kind="stable")[:WEAKEST] if many else []
    return {"class_head": head, "class_rows": rows, "weakest": [rows[k] for k in weakest]}


def _bars(run_dir: Path, scores: ClassScores, classes: Sequence[str]) -> Any:
    """The plot of per_class.png, which it writes; None for single-label data."""
    areas = scores.average_precision
    if areas is None:
        return None
    bars = plot(lambda theme: figures.class_bars(areas, classes, theme), "average precision")
    write_bytes(run_dir / "per_class.png", bars.light)
    return bars


def _confusion(
    run_dir: Path, predictions: Predictions, classes: Sequence[str]
) -> dict[str, Any] | None:
    """The plot of confusion.png, which it writes, a note, and the pairs most confused."""
    if predictions.multilabel or len(classes) > MAX_CONFUSION:
        return None
    matrix = confusion_matrix(predictions.labels, predictions.top_classes[:, 0], len(classes))
    shown = figures.most_confused_classes(matrix)
    notes = []
    if len(shown) < len(classes):
        notes.append("Rows are fractions of all images of a class.")
    numbered = [f"#{k} {classes[k]}" for k in shown if not drawable(classes[k])]
    if numbered:
        notes.append(f"No font could draw these names: {', '.join(numbered)}.")
    drawn = plot(
        lambda theme: figures.confusion(matrix, classes, theme), "Confusion matrix", crop=True
    )
    write_bytes(run_dir / "confusion.png", drawn.light)
    pairs = [
        (classes[true], classes[other], f"{count:,}", percent(count / matrix[true].sum()))
        for true, other, count in most_confused(matrix)
    ]
    width = "24rem" if len(shown) <= figures.WITH_NUMBERS else "100%"
    return {"plot": drawn, "note": " ".join(notes), "pairs": pairs, "width": width}


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


def _confidence(summary: Mapping[str, Any], predictions: Predictions, split: str) -> dict[str, Any]:
    """Source of the stated confidence, its error without the temperature, and the sets."""
    fitted = summary.get("confidence") or {"temperature": 1}
    scaled = fitted["temperature"] != 1
    about = "Probabilities are the model's own: no images were held out to fit a temperature to."
    if "images" in fitted:
        about = "Probabilities are the model's own: no temperature is better for "
        if scaled:
            about = f"Probabilities are of logits / {fitted['temperature']:.3g}, fitted to "
        about += f"{fitted['images']:,} {fitted['measured_on']}."
    sets = [
        (f"{row['coverage']:g}", percent(row["holding"]), f"{row['classes']:.2f}")
        for row in predictions.sets
    ]
    unscaled = summary["metrics"].get(f"{split}/ece") if scaled else None
    return {"measured": about, "unscaled": unscaled, "sets": sets}


def _refusing(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plot of accuracy by share answered, and some of its numbers; None if not measured."""
    unknown = summary.get("unknown")
    if not unknown:
        return None
    accuracies, images = unknown["accuracies"], unknown["images"]
    rows = [(f"{n} %", percent(accuracies[n - 1], images)) for n in SHOWN_SHARES]
    drawn = plot(lambda theme: figures.answered(accuracies, theme), "Accuracy by share answered")
    measured_on = f"{images:,} {summary['confidence']['measured_on']}"
    return {"plot": drawn, "rows": rows, "measured_on": measured_on}


def _reliability(predictions: Predictions) -> Reliability:
    """Reliability of the most probable class, or of all classes of multi-label data."""
    if predictions.multilabel:
        labels = (predictions.labels > 0).ravel()
        return reliability(class_probabilities(predictions).ravel(), labels)
    return reliability(predictions.top_probabilities[:, 0], predictions.hits())


def _group_rows(groups: Reliability) -> list[tuple[str, ...]]:
    """The numbers of the reliability diagram, one row per bin that is not empty."""
    columns = (groups.low, groups.high, groups.count, groups.confidence, groups.hits)
    rows = []
    for low, high, count, confidence, hits in zip(*columns, strict=True):
        bounds = f"{100 * low:.0f} to {100 * high:.0f}\N{NO-BREAK SPACE}%"
        rows.append((bounds, f"{count:,}", percent(confidence), percent(hits / count)))
    return rows
