"""Predictions for a set of images, and their files.

Shapes: n images, k classes, t classes kept per image.
"""

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vit.writing import atomic, for_spreadsheet

FILE = "predictions.npz"
"""Of a run: those of its final score, without sets, the `split`, and `thresholds` if any."""
CSV_TOP = 5
THRESHOLD = 0.5
"""Probability above which a class is predicted in multi-label data, where none was chosen."""


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

    def probabilities(self) -> np.ndarray:
        """(n, k) in class order, of multi-label data."""
        table = np.empty_like(self.top_probabilities)
        np.put_along_axis(table, self.top_classes, self.top_probabilities, axis=1)
        return table

    def chosen(self, thresholds: np.ndarray | None) -> np.ndarray:
        """(n, k) true where a class of multi-label data is above its threshold (k,)."""
        return self.probabilities() > (THRESHOLD if thresholds is None else thresholds)


def write_csv(
    file: Path,
    classes: Sequence[str],
    predictions: Predictions,
    *,
    thresholds: np.ndarray | None = None,
    spreadsheet: bool = False,
) -> None:
    """Writes a row per image: its classes, 1 if the most probable class is correct, the top five.

    Several classes of an image are separated by "|", as in a manifest; those above their thresholds
    are in a last column, predicted_labels. With `spreadsheet`, names that a spreadsheet would run
    as formulas are prefixed with '.
    """
    head = ["index", "image", "label", "label_probability", "predicted", "probability", "correct"]
    count = min(CSV_TOP, predictions.top_classes.shape[1])
    head += [f"{name}_{i}" for i in range(2, count + 1) for name in ("predicted", "probability")]
    chosen = predictions.chosen(thresholds) if predictions.multilabel else None
    if chosen is not None:
        head.append("predicted_labels")
    # A pipe or a device such as /dev/stdout must not be replaced by a file.
    whole = atomic(file) if file.is_file() or not file.exists() else nullcontext(file)
    with (
        whole as place,
        # A file name need not be valid Unicode.
        place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(head)
        for row, correct in enumerate(predictions.hits()):
            top = predictions.top_classes[row], predictions.top_probabilities[row]
            best = [[classes[k], _short(p)] for k, p in list(zip(*top, strict=True))[:CSV_TOP]]
            true = "|".join(classes[k] for k in predictions.classes_of(row))
            cells = [predictions.indices[row], predictions.names[row], true]
            cells += [_short(predictions.label_probabilities[row]), *best[0], int(correct)]
            cells += [cell for pair in best[1:] for cell in pair]
            if chosen is not None:
                cells.append("|".join(classes[k] for k in np.flatnonzero(chosen[row]).tolist()))
            writer.writerow(for_spreadsheet(cells) if spreadsheet else cells)


def _short(probability: float) -> str:
    return f"{probability:.6g}"
