"""The minimum against SciPy's, with the objective in NumPy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp

from vit.logistic import minimise

N, D = 40, 3
RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(N, D)) * [1, 3, 0.2]
CLASSES = RANDOM.integers(0, 3, N)
MANY = (RANDOM.random((N, 3)) < 0.4).astype(float)
STOPPING = {"max_iter": 500, "tolerance_grad": 1e-10, "tolerance_change": 0.0}


def cross_entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    if labels.ndim == 2:
        return float(-(labels * log_expit(scores) + (1 - labels) * log_expit(-scores)).sum())
    if scores.shape[1] == 1:
        scores = np.pad(scores, ((0, 0), (1, 0)))
    return float((logsumexp(scores, axis=1) - scores[np.arange(N), labels]).sum())


def by_scipy(labels: np.ndarray, rows: int, strength: float) -> np.ndarray:
    """The weights (rows, d)."""

    def objective(flat: np.ndarray) -> float:
        weight, bias = flat[: rows * D].reshape(rows, D), flat[rows * D :]
        mean_loss = cross_entropy(FEATURES @ weight.T + bias, labels) / N
        return mean_loss + strength * float((weight**2).sum())

    minimum = minimize(objective, np.zeros(rows * (D + 1)), tol=1e-12, options={"gtol": 1e-9})
    return minimum.x[: rows * D].reshape(rows, D)


@pytest.mark.parametrize(
    ("labels", "rows"),
    [(CLASSES, 3), (CLASSES % 2, 1), (MANY, 3), (MANY[:, :1], 1)],
)
@pytest.mark.parametrize("scale", [1.0, torch.tensor([2.0, 0.5, 9.0]).double()])
def test_the_minimum_is_scipys_in_any_coordinates(
    labels: np.ndarray, rows: int, scale: torch.Tensor | float
) -> None:
    data = torch.from_numpy(FEATURES), torch.from_numpy(labels)
    start = torch.zeros(rows, D).double(), torch.zeros(rows).double()
    fit = minimise(*data, *start, 0.01, scale=scale, **STOPPING)
    expected = by_scipy(labels, rows, 0.01)
    np.testing.assert_allclose((fit.weight * scale).numpy(), expected, rtol=0, atol=1e-5)
    assert fit.steepest < 1e-8


def test_the_starting_point_stays_as_it_is_where_gradients_are_off() -> None:
    start = torch.ones(3, D).double()
    data = torch.from_numpy(FEATURES), torch.from_numpy(CLASSES)
    with torch.inference_mode():
        fit = minimise(*data, start, torch.zeros(3).double(), 0.01, **STOPPING)
    assert (start == 1).all() and not (fit.weight == 1).any()
    assert fit.iterations > 1
