"""Logistic regression on frozen features by DINOv2's protocol (dinov2/eval/log_regression.py).

C is chosen from a logarithmic grid on a tenth of train, or on val; one fit on all of these is
evaluated on test. The objective is that of scikit-learn, C * sum of losses + |W|^2 / 2, minimised
by L-BFGS in float64. Shapes: n images, d features, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.console import Meter
from vit.data.cut import held_out
from vit.data.sources import PathList
from vit.errors import UserError
from vit.extensions.sources.groups import cut_groups
from vit.logistic import minimise, two_columns

NUM_C = 12
"""Powers of ten from 1e-6 to 1e5: every fourth of DINOv2's 45 values. Near the best one, accuracy
changes less between two of them than the held-out images can resolve."""

MAX_ITERATIONS = 1000
TOLERANCE = 1e-5
HELD_OUT = 0.1
SEED = 0
Pair = tuple[np.ndarray, np.ndarray]  # features of images, and their labels (n,)


@dataclass(frozen=True)
class LogisticFit:
    """Weights (k, d) and bias (k,) of the scores; for two classes one row, the score of class 1."""

    weight: Tensor
    bias: Tensor
    iterations: int
    converged: bool
    """The gradient reached the tolerance."""

    def probabilities(self, features: Tensor) -> Tensor:
        """Probabilities (n, k) of `features` (n, d)."""
        return two_columns(F.linear(features, self.weight, self.bias)).softmax(1)


@dataclass(frozen=True)
class ProbeResult:
    """A C, or a learning rate, and the accuracy with it on test."""

    accuracy: float
    chosen: float
    sweep: dict[float, float]
    """C or rate -> accuracy on the held-out images."""
    converged: bool
    """The last fit converged within the iterations."""


def c_values(count: int = NUM_C) -> list[float]:
    """`count` values from 1e-6 to 1e5 on a logarithmic scale; DINOv2 has 45."""
    if count < 2:
        raise UserError(f"num_c={count} must be at least 2: the ends of the range")
    return [float(c) for c in 10.0 ** np.linspace(-6, 5, count)]


class LogisticProblem:
    """Training images, `features` (n, d) float64 and `labels` (n,), for fits with any C.

    On correlated features L-BFGS would take thousands of steps, so they are centred, turned to the
    principal axes, and scaled to about equal curvature. The minimum is the same.
    """

    def __init__(self, features: Tensor, labels: Tensor, num_classes: int) -> None:
        self.labels = labels
        self.num_classes = num_classes
        self.mean = features.mean(0)
        centred = features - self.mean
        variances, self.axes = torch.linalg.eigh(centred.T @ centred / len(features))
        # Curvature of cross-entropy: p (1 - p) times the variance, at equal p for all classes.
        self.curvature = variances.clamp(min=0) * (num_classes - 1) / num_classes**2
        self.rotated = centred @ self.axes

    def fit(
        self,
        c: float,
        *,
        start: LogisticFit | None = None,
        max_iterations: int = MAX_ITERATIONS,
        tolerance: float = TOLERANCE,
    ) -> LogisticFit:
        """Minimises mean cross-entropy + |weight|^2 / (2 c n); the bias is free.

        `start`: a fit to start from. `tolerance`: bound of the largest gradient entry in the
        coordinates of this class.
        """
        count, rows = len(self.rotated), 1 if self.num_classes == 2 else self.num_classes
        strength = 1 / (c * count)
        scale = (self.curvature + strength).rsqrt()
        weight, bias = self.mean.new_zeros(rows, len(scale)), self.mean.new_zeros(rows)
        if start is not None:
            weight = start.weight @ self.axes / scale
            bias = start.bias + start.weight @ self.mean
        fit = minimise(
            self.rotated,
            self.labels,
            weight,
            bias,
            strength / 2,
            scale=scale,
            max_iter=max_iterations,
            max_eval=2 * max_iterations,
            tolerance_grad=tolerance,
            tolerance_change=0.0,
            history_size=20,
        )
        straight = (fit.weight * scale) @ self.axes.T
        return LogisticFit(
            weight=straight,
            bias=fit.bias - straight @ self.mean,
            iterations=fit.iterations,
            converged=fit.steepest <= tolerance,
        )


def choose_c(
    train: tuple[Tensor, Tensor],
    selection: tuple[Tensor, Tensor],
    num_classes: int,
    values: Sequence[float],
) -> dict[float, float]:
    """C -> accuracy on `selection` of the fit to `train`, each started from the previous one."""
    problem, fit = LogisticProblem(*train, num_classes), None
    accuracies = {}
    with Meter("logistic regression", len(values), "fits") as meter:
        for c in sorted(values):
            fit = problem.fit(c, start=fit)
            accuracies[c] = accuracy(fit, *selection)
            meter.advance(1)
    return accuracies


def accuracy(fit: LogisticFit, features: Tensor, labels: Tensor) -> float:
    """Accuracy on `features` (n, d) and `labels` (n,)."""
    return float((fit.probabilities(features).argmax(1) == labels).double().mean())


def probe_accuracy(
    train: Pair,
    test: Pair,
    num_classes: int,
    *,
    val: Pair | None = None,
    groups: PathList | None = None,
    num_c: int = NUM_C,
    device: str = "cpu",
) -> ProbeResult:
    """The protocol, from features (n, d) and labels (n,) of two or three sets.

    Ties go to the smallest C. `groups`: as for `with_selection`, which raises UserError.
    """
    values = c_values(num_c)
    arrays, rest, chosen = with_selection(train, val, groups)
    everything = _tensors(arrays, device)
    sweep = choose_c(_rows(everything, rest), _rows(everything, chosen), num_classes, values)
    c = max(sweep, key=sweep.__getitem__)  # the smallest of the best
    last = LogisticProblem(*everything, num_classes).fit(c)
    return ProbeResult(accuracy(last, *_tensors(test, device)), c, sweep, last.converged)


def with_selection(
    train: Pair, val: Pair | None, groups: PathList | None
) -> tuple[Pair, np.ndarray, np.ndarray]:
    """Images of the last fit, and the places of those to fit before and to choose by.

    Without val, these are whole groups if `groups` names those of train. UserError if there are too
    few images or groups of each class.
    """
    if val is not None:
        features, labels = (np.concatenate(arrays) for arrays in zip(train, val, strict=True))
        rest, chosen = np.split(np.arange(len(labels)), [len(train[1])])
        return (features, labels), rest, chosen
    cut = {"seed": SEED, "val_fraction": HELD_OUT, "test_fraction": 0.0}
    if groups is None:
        places, strata = [*map(str, range(len(train[1])))], [*map(str, train[1])]
        rest, chosen, _ = held_out(places, strata, **cut)
    else:
        rest, chosen, _ = cut_groups(groups, train[1], **cut)
    if not len(chosen):
        few = "images" if groups is None else "groups"
        raise UserError(f"no class has two training {few}, so none can be held out to choose by")
    return train, rest, chosen


def _rows(pair: tuple[Tensor, Tensor], places: np.ndarray) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(places).to(pair[1].device)
    return pair[0][rows], pair[1][rows]


def _tensors(arrays: Pair, device: str) -> tuple[Tensor, Tensor]:
    features, labels = arrays
    return (
        torch.from_numpy(features).to(device, torch.float64),
        torch.from_numpy(labels).to(device),
    )
