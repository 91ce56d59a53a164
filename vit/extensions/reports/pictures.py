"""The images that a page shows: errors by cell of the confusion matrix, and right answers.

Shapes: n images, k classes. Rows are places in Predictions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vit.extensions.reports.page import embedded
from vit.runs.predictions import Predictions

SMALL, LARGE = 112, 224
"""Longer side of a picture in pixels; large are those of the most confident errors."""
MOST_PICTURES = 120
"""Pictures in the cells of a page."""
MOST_EXAMPLES = 60
"""Right answers on a page: three of each class, where there are few."""

Pair = tuple[int, int]
"""True and predicted class."""


@dataclass(frozen=True)
class Picture:
    """An image that a page embeds once, however often it is shown."""

    source: str
    style: str
    size: tuple[int, int]


def picture(image: Image.Image, side: int = SMALL) -> Picture:
    """The image, its longer side of at most `side` pixels."""
    small = image.copy()
    small.thumbnail((side, side))
    return Picture(*embedded(small), small.size)


def opened(open_image: Callable[[int], Image.Image], index: int) -> Image.Image | None:
    """An image in RGB; None for one that cannot be opened, such as a deleted file."""
    try:
        return open_image(index).convert("RGB")
    except (OSError, ValueError):
        return None


def error_cells(
    predictions: Predictions, errors: Iterable[tuple[int, int, float]], classes: Iterable[int]
) -> dict[Pair, list[int]]:
    """The rows of `errors` between `classes` by pair, in the same order; largest pairs first."""
    shown, cells = set(classes), dict[Pair, list[int]]()
    for row, predicted, _ in errors:
        true = int(predictions.labels[row])
        if true in shown and predicted in shown:
            cells.setdefault((true, predicted), []).append(row)
    return dict(sorted(cells.items(), key=lambda cell: (-len(cell[1]), cell[0])))


def pictured(cells: Mapping[Pair, list[int]]) -> list[int]:
    """The rows that get a picture: the first of each cell, then the second, up to a number."""
    turns = [(place, row) for rows in cells.values() for place, row in enumerate(rows)]
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])[:MOST_PICTURES]]


def right_examples(
    predictions: Predictions, classes: Iterable[int], thresholds: np.ndarray | None
) -> dict[int, list[int]]:
    """Rows of the most confident right answers of each class that has any."""
    classes = sorted(set(classes))
    count = max(1, min(3, MOST_EXAMPLES // max(1, len(classes))))
    if predictions.multilabel:
        right = (predictions.labels > 0) & predictions.chosen(thresholds)
        shares = np.where(right, predictions.probabilities(), -1.0)[:, classes]
    else:
        right = predictions.hits()[:, None] & (
            predictions.labels[:, None] == np.array(classes, int)
        )
        shares = np.where(right, predictions.top_probabilities[:, :1], -1.0)
    orders = np.argsort(-shares, axis=0, kind="stable")[:count].T
    return {
        k: [int(row) for row in order if share[row] >= 0]
        for k, order, share in zip(classes, orders, shares.T, strict=True)
        if share.max() >= 0
    }
