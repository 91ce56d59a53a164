"""Scores of predictions, in numpy. Shapes: n images, k classes.

An undefined score (recall of a class without images, precision of a class that was never predicted)
is NaN, not 0: the page shows a dash, and means skip it.
"""

from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def wilson_interval(hits: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Confidence interval of the proportion hits / total (Wilson, 1927).

    Unlike p +- z sqrt(p (1 - p) / n), it stays in [0, 1] and does not collapse to a point at
    0 or `total` hits. Raises ValueError unless 0 <= hits <= total and total >= 1.
    """
    if not (total >= 1 and 0 <= hits <= total):
        raise ValueError(f"hits={hits} of total={total} is not a proportion of at least one image")
    share = hits / total
    centre = share + z * z / (2 * total)
    spread = z * (share * (1 - share) / total + z * z / (4 * total * total)) ** 0.5
    scale = 1 + z * z / total
    # Rounding leaves 1e-17 beyond the ends at 0 and `total` hits, where the bound is exact.
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


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
    return [(true, said, int(errors[true, said])) for true, said in pairs if errors[true, said]]


@dataclass(frozen=True)
class ClassScores:
    """Scores per class, each (k,)."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray
    count: np.ndarray
    """Number of images of the class."""


def class_scores(hits: np.ndarray, predicted: np.ndarray, count: np.ndarray) -> ClassScores:
    """Precision, recall and F1 from three counts per class (k,): correct predictions, predictions,
    images of the class."""
    return ClassScores(
        precision=_ratio(hits, predicted),
        recall=_ratio(hits, count),
        f1=_ratio(2 * hits, predicted + count),
        count=count,
    )


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(
        numerator, denominator, out=np.full(len(denominator), np.nan), where=denominator > 0
    )


def average_precision(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Average precision per class (k,) from scores and labels (n k).

    Equal scores enter the ranking together, so the order of the images does not matter. `scores`
    are probabilities; NaN, from a diverged model, ranks last.
    """
    from sklearn.metrics import average_precision_score  # slow to import, and rarely needed

    scores, relevant = np.nan_to_num(scores, nan=-1.0), labels > 0
    areas = [
        average_precision_score(of_class, ranking) if of_class.any() else np.nan
        for of_class, ranking in zip(relevant.T, scores.T, strict=True)
    ]
    return np.array(areas)
