"""Scores of each class of multi-label data, as a table for terminals and programs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit.reports.results import Predictions, of_classes
from vit.reports.scores import average_precision, class_scores

MOST = 50
"""Classes that are printed; of more, those with the lowest average precision."""

_FIGURES = ("average_precision", "threshold", "precision", "recall", "f1")


def class_table(
    classes: Sequence[str], predictions: Predictions, thresholds: np.ndarray | None
) -> list[dict[str, Any]]:
    """An object per class: images, average precision, and the rest at its threshold.

    What is not defined is None. Empty where the predictions hold a few classes per image only.
    """
    table = predictions.scores()
    if table is None:
        return []
    labels = predictions.labels > 0
    thresholds = of_classes(thresholds, len(classes))
    said = table > thresholds
    scores = class_scores((labels & said).sum(0), said.sum(0), labels.sum(0))
    areas = average_precision(table, labels)
    columns = (areas, thresholds, scores.precision, scores.recall, scores.f1)
    return [
        {"class": name, "images": int(count)}
        | {
            figure: None if np.isnan(column[k]) else float(column[k])
            for figure, column in zip(_FIGURES, columns, strict=True)
        }
        for k, (name, count) in enumerate(zip(classes, scores.count, strict=True))
    ]


def class_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The table for a terminal; a dash stands for what is not defined."""
    if not rows:
        return
    yield ""
    if len(rows) > MOST:
        yield f"the {MOST} of {len(rows):,} classes with the lowest average precision:"
        rows = sorted(rows, key=lambda row: row["average_precision"] or 0)[:MOST]
    width = max(len("class"), *(len(row["class"]) for row in rows))
    heads = ("images", "avg. prec.", "threshold", "precision", "recall", "F1")
    yield f"{'class':{width}}" + "".join(f"{head:>12}" for head in heads)
    for row in rows:
        figures = ("-" if row[name] is None else f"{row[name]:.4f}" for name in _FIGURES)
        cells = [f"{row['images']:,}", *figures]
        yield f"{row['class']:{width}}" + "".join(f"{cell:>12}" for cell in cells)
