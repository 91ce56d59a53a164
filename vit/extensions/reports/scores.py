"""Scores of predictions, in numpy, and the table of classes. Shapes: n images, k classes.

An undefined score (recall of a class without images, precision of a class that was never predicted)
is NaN, not 0: the page shows a dash, and means skip it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vit.runs.predictions import Predictions

MOST_PRINTED = 50
"""Classes that a terminal shows; of more, those with the lowest average precision."""
THRESHOLD = 0.5
"""Probability above which a class is predicted in multi-label data, where none was chosen."""


def class_probabilities(predictions: Predictions) -> np.ndarray:
    """(n, k) in class order, of multi-label data."""
    table = np.empty_like(predictions.top_probabilities)
    np.put_along_axis(table, predictions.top_classes, predictions.top_probabilities, axis=1)
    return table


def predicted_labels(predictions: Predictions, thresholds: np.ndarray | None) -> np.ndarray:
    """(n, k) true where a class of multi-label data is above its threshold (k,)."""
    return class_probabilities(predictions) > (THRESHOLD if thresholds is None else thresholds)


def confusion_matrix(labels: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts (k k) with rows for true and columns for predicted classes, from (n,) integers."""
    cells = np.bincount(labels * num_classes + predicted, minlength=num_classes**2)
    return cells.reshape(num_classes, num_classes)


def most_confused(matrix: np.ndarray, limit: int = 10) -> list[tuple[int, int, int]]:
    """(true, predicted, count) of the largest off-diagonal cells; ties are in class order."""
    errors = matrix.copy()
    np.fill_diagonal(errors, 0)
    order = np.argsort(-errors, axis=None, kind="stable")[:limit]
    pairs = [divmod(int(cell), len(matrix)) for cell in order]
    return [(true, other, int(errors[true, other])) for true, other in pairs if errors[true, other]]


@dataclass(frozen=True, kw_only=True)
class ClassScores:
    """Scores per class, each (k,)."""

    count: np.ndarray
    """Number of images of the class."""
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    average_precision: np.ndarray | None = None
    """Multi-label only; the scores before are then at these thresholds."""
    threshold: np.ndarray | None = None


def class_scores(
    predictions: Predictions, num_classes: int, thresholds: np.ndarray | None = None
) -> ClassScores:
    """Precision, recall and F1 of each class; of multi-label data at its threshold (k,)."""
    multilabel: dict[str, np.ndarray] = {}
    if predictions.multilabel:
        labels, chosen = predictions.labels > 0, predicted_labels(predictions, thresholds)
        hits, predicted, count = (table.sum(0) for table in (labels & chosen, chosen, labels))
        if thresholds is None:
            thresholds = np.full(num_classes, THRESHOLD)
        areas = average_precision(class_probabilities(predictions), labels)
        multilabel = {"average_precision": areas, "threshold": thresholds}
    else:
        labels, first = predictions.labels, predictions.top_classes[:, 0]
        hits, predicted, count = (
            np.bincount(which, minlength=num_classes)
            for which in (labels[labels == first], first, labels)
        )
    return ClassScores(
        count=count,
        precision=_ratio(hits, predicted),
        recall=_ratio(hits, count),
        f1=_ratio(2 * hits, predicted + count),
        **multilabel,
    )


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    undefined = np.full(len(denominator), np.nan)
    return np.divide(numerator, denominator, out=undefined, where=denominator > 0)


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average precision per class (k,) from scores and labels (n k).

    Equal scores enter the ranking together. NaN, from a diverged model, ranks last.
    """
    from sklearn.metrics import average_precision_score  # slow to import, and rarely needed

    scores, relevant = np.nan_to_num(scores, nan=-1.0), labels > 0
    areas = [
        average_precision_score(of_class, ranking) if of_class.any() else np.nan
        for of_class, ranking in zip(relevant.T, scores.T, strict=True)
    ]
    return np.array(areas)


def errors(
    predictions: Predictions, thresholds: np.ndarray | None = None
) -> list[tuple[int, int, float]]:
    """(row, class, probability) of each image with an error, most confident first.

    Multi-label: the most probable class above its threshold that the image does not have.
    """
    if predictions.multilabel:
        wrong = predicted_labels(predictions, thresholds) & ~(predictions.labels > 0)
        probabilities = np.where(wrong, class_probabilities(predictions), -1.0)
        predicted, rows = probabilities.argmax(axis=1), np.flatnonzero(wrong.any(axis=1))
        confidence = probabilities.max(axis=1)
    else:
        predicted, rows = predictions.top_classes[:, 0], np.flatnonzero(~predictions.hits())
        confidence = predictions.top_probabilities[:, 0]
    rows = rows[np.argsort(-confidence[rows], kind="stable")]
    return [(int(row), int(predicted[row]), float(confidence[row])) for row in rows]


def per_class(
    classes: Sequence[str], predictions: Predictions, thresholds: np.ndarray | None
) -> tuple[list[dict[str, Any]], Iterator[str]]:
    """An object per class of multi-label data, and the table of them for a terminal."""
    table = class_table(classes, class_scores(predictions, len(classes), thresholds))
    return table, class_lines(table)


def class_table(classes: Sequence[str], scores: ClassScores) -> list[dict[str, Any]]:
    """An object per class of multi-label data for programs; None is an undefined score."""
    names = ("average_precision", "threshold", "precision", "recall", "f1")
    columns = {name: getattr(scores, name) for name in names}
    return [
        {"class": name, "images": int(scores.count[k])}
        | {key: None if np.isnan(c[k]) else float(c[k]) for key, c in columns.items()}
        for k, name in enumerate(classes)
    ]


def class_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table for a terminal; a dash is an undefined score."""
    if len(rows) > MOST_PRINTED:
        yield f"the {MOST_PRINTED} of {len(rows):,} classes with the lowest average precision:"
        rows = sorted(rows, key=lambda row: row["average_precision"] or 0)[:MOST_PRINTED]
    width = max(len("class"), *(len(row["class"]) for row in rows))
    heads = ("images", "avg. prec.", "threshold", "precision", "recall", "F1")
    yield f"{'class':{width}}" + "".join(f"{head:>12}" for head in heads)
    for row in rows:
        name, images, *values = row.values()
        cells = [f"{images:,}", *("-" if value is None else f"{value:.4f}" for value in values)]
        yield f"{name:{width}}" + "".join(f"{cell:>12}" for cell in cells)
