"""Folds of the images of a data set, and what the scores of folds say of other images.

Shapes: n images, k classes.
"""

import math
import statistics
import warnings
from collections.abc import Sequence

import numpy as np

from vit.errors import UserError, some_of


def fold_of_each(
    labels: np.ndarray, groups: np.ndarray | None, classes: Sequence[str], folds: int, seed: int
) -> np.ndarray:
    """The fold of each image, int64 `n` from 0: classes in equal shares, as far as whole groups
    allow, by scikit-learn's StratifiedKFold or StratifiedGroupKFold.

    An image with several labels counts for each of them.

    Args:
        labels: Classes `n`, or zeros and ones `n k`.
        groups: Numbers `n`, equal in a group.

    UserError for a class with fewer groups, or images, than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import

    count, several = len(labels), labels.ndim == 2
    images, kinds = labels.nonzero() if several else (np.arange(count), labels)
    units = np.arange(count) if groups is None else groups
    _check_classes(kinds, units[images], classes, folds, "images" if groups is None else "groups")
    if several:  # images without labels are a kind, too
        bare = np.flatnonzero(~labels.any(1))
        images = np.concatenate([images, bare])
        kinds = np.concatenate([kinds, np.full(len(bare), len(classes))])
    divided = StratifiedKFold if groups is None and not several else StratifiedGroupKFold
    splitter = divided(folds, shuffle=True, random_state=seed)
    chosen = np.empty(count, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few images without labels
        for fold, (_, out) in enumerate(splitter.split(kinds, kinds, units[images])):
            chosen[images[out]] = fold
    return chosen


def _check_classes(
    kinds: np.ndarray, units: np.ndarray, classes: Sequence[str], folds: int, name: str
) -> None:
    pairs = np.unique(np.stack([kinds, units]), axis=1)
    counts = np.bincount(pairs[0], minlength=len(classes))
    if len(scarce := np.flatnonzero(counts < folds)):
        shown = some_of(f"{classes[at]!r} has {counts[at]}" for at in scarce.tolist())
        raise UserError(
            f"--folds {folds}: each class needs as many {name}, and {shown}; give fewer folds, or "
            "add images"
        )


def corrected_interval(scores: Sequence[float], ratios: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of the scores of k folds in [0, 1].

    The corrected resampled t-test of Nadeau and Bengio (Machine Learning 52, 2003, section 3):
    the variance of the scores times 1 / k + n_test / n_train, as the runs share training images,
    and Student's t with k - 1 degrees of freedom. `ratios`: n_test / n_train of each fold.
    """
    from scipy.stats import t  # slow to import; comes with scikit-learn

    count, mean = len(scores), statistics.mean(scores)
    spread = statistics.variance(scores) * (1 / count + statistics.mean(ratios))
    half = float(t.ppf(0.975, count - 1)) * math.sqrt(spread)
    return max(0.0, mean - half), min(1.0, mean + half)
