"""Few-shot accuracy by ridge regression (ViT, arXiv:2010.11929, section 4.1).

As in big_vision (evaluators/fewshot_lsr.py), but in float64: regularised least squares in closed
form from frozen features to targets of -1 and 1. Shapes: n images, d features, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vit.errors import UserError

BIAS = 100.0
"""The constant feature, so large that its weight is hardly regularised."""

L2 = 2.0**10
"""big_vision's regularisation (configs/common_fewshot.py), the same for all sets."""

SHOTS = (1, 5, 10, 25)


@dataclass(frozen=True)
class Ridge:
    """Ridge regression on standardised features, solved for all regularisation strengths at once.

    With X (n d+1) and Y (n k) the weights are (X'X + l2)^-1 X'Y, or X'(XX' + l2)^-1 Y if that
    matrix is smaller. With its eigenvectors, the inverse is a division by eigenvalue + l2.
    """

    mean: np.ndarray
    std: np.ndarray
    eigenvalues: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @classmethod
    def fit(cls, features: np.ndarray, labels: np.ndarray, num_classes: int) -> "Ridge":
        """Fits `features` (n, d) and `labels` (n,)."""
        features = features.astype(np.float64)
        mean, std = features.mean(0), features.std(0) + 1e-5
        x = _with_bias((features - mean) / std)
        y = 2.0 * np.eye(num_classes)[labels] - 1.0
        if len(x) >= x.shape[1]:
            eigenvalues, q = np.linalg.eigh(x.T @ x)
            return cls(mean, std, eigenvalues, q, q.T @ (x.T @ y))
        eigenvalues, q = np.linalg.eigh(x @ x.T)
        return cls(mean, std, eigenvalues, x.T @ q, q.T @ y)

    def scores(self, features: np.ndarray, l2: float = L2) -> np.ndarray:
        """Scores (n, k) of `features` (n, d); the prediction is the argmax."""
        x = _with_bias((features.astype(np.float64) - self.mean) / self.std)
        return x @ ((self.left / (self.eigenvalues + l2)) @ self.right)


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)


def draw_shots(labels: np.ndarray, num_classes: int, shots: int, seed: int) -> np.ndarray:
    """Indices of `shots` images of each class, ordered by class.

    A larger draw contains a smaller one. Draws depend on the order of the images, which in
    big_vision is that of TensorFlow Datasets.
    """
    random = np.random.default_rng(seed)
    chosen = [random.permutation(np.flatnonzero(labels == k))[:shots] for k in range(num_classes)]
    return np.concatenate(chosen)


def check_shots(
    labels: np.ndarray, classes: Sequence[str], shots: Sequence[int], l2: float = L2
) -> None:
    """Raises UserError if a class has fewer images than requested."""
    if not l2 > 0:
        raise UserError(f"l2={l2} must be above 0")
    for count in shots:
        if count < 1:
            raise UserError(f"shots={count} must be at least 1")
    counts = np.bincount(labels, minlength=len(classes))
    scarce = int(counts.argmin())
    if counts[scarce] < max(shots):
        few = int((counts < max(shots)).sum())
        others = f" ({few} classes have fewer)" if few > 1 else ""
        raise UserError(
            f"class {classes[scarce]!r} has {counts[scarce]} training images, {max(shots)} shots "
            f"want {max(shots)}{others}; ask for at most {counts[scarce]} shots"
        )


def few_shot_accuracy(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: Sequence[str],
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = (0, 1, 2),
    l2: float = L2,
) -> dict[int, list[float]]:
    """Shots -> test accuracy for each seed, from features (n, d) and labels (n,) of two sets.

    Raises UserError if a training class has fewer images than requested.
    """
    (features, labels), (queries, truth) = train, test
    check_shots(labels, classes, shots, l2)
    accuracies: dict[int, list[float]] = {count: [] for count in shots}
    for seed in seeds:
        for count in shots:
            drawn = draw_shots(labels, len(classes), count, seed)
            ridge = Ridge.fit(features[drawn], labels[drawn], len(classes))
            hits = ridge.scores(queries, l2).argmax(1) == truth
            accuracies[count].append(float(hits.mean()))
    return accuracies
