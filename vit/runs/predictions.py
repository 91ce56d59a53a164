"""Predictions for a set of images.

Shapes: n images, k classes, t classes kept per image.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit.tables import resolve, rows

FILE = "predictions.npz"
"""Of a run: those of its final score, without sets, the `split`, and `thresholds` if any."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions for the images of a set, in its order."""

    indices: np.ndarray
    """(n,) indices into the data set."""
    names: list[str]
    """n file names, or other names for display."""
    labels: np.ndarray
    """(n,) class indices, or (n, k) multi-hot labels."""
    top_classes: np.ndarray
    """(n, t) class indices, most probable first; t = k in multi-label data."""
    top_probabilities: np.ndarray
    """(n, t), descending."""
    label_probabilities: np.ndarray
    """(n,) probability of the true class; multi-label: mean over the true classes."""
    level_probabilities: np.ndarray | None = None
    """(n, l) of the most probable node of each level of a tree of classes, from above."""
    level_hits: np.ndarray | None = None
    """(n, l) true where that node is the label or above it."""
    sets: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Of a `coverage` that was asked for: the share of images whose set is `holding` the true
    class, and `classes` in a set on average."""

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    def classes_of(self, row: int) -> tuple[int, ...]:
        """The true classes of an image."""
        labels = self.labels[row]
        return tuple(map(int, np.flatnonzero(labels > 0) if self.multilabel else [labels]))

    def hits(self) -> np.ndarray:
        """(n,) true where the most probable class is a true one."""
        first = self.top_classes[:, 0]
        if self.multilabel:
            return self.labels[np.arange(len(self)), first] > 0
        return self.labels == first

    def accuracy_above(self) -> list[float]:
        """Share of images whose most probable node is right, of each level above the classes."""
        return [] if self.level_hits is None else self.level_hits.mean(0)[:-1].tolist()


PredictionWriter = Callable[..., None]
"""A row of the table `prediction_files`, called with the arguments of `write`."""


def write(
    file: Path,
    classes: list[str],
    predictions: Predictions,
    thresholds: np.ndarray | None,
    *,
    spreadsheet: bool,
) -> None:
    """Writes the file of `vit predict`; `spreadsheet`: no name in it would run as a formula."""
    for row in rows("prediction_files").values():
        writer: PredictionWriter = resolve(row)
        writer(file, classes, predictions, thresholds, spreadsheet=spreadsheet)
