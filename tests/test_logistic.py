"""The minimum against SciPy's, with the objective in NumPy."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_expit, logsumexp
from sklearn.model_selection import GroupKFold

from vit import logistic
from vit.logistic import FOLDS, fit_head, held_out_logits, minimise

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
    first = minimise(*data, *start, 0.01, scale=scale, **STOPPING)
    # Rounding may end the line search early; a second start goes on from there.
    fit = minimise(*data, first.weight, first.bias, 0.01, scale=scale, **STOPPING)
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


def test_a_small_minimum_is_computed_on_one_thread_and_the_others_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen: list[int] = []
    loss = logistic.total_loss

    def counting(*args: torch.Tensor | None) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return loss(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(logistic, "total_loss", counting)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for images, threads in ((N, 1), (2_000_000, 2)):
            seen.clear()
            features = torch.zeros(images, 20).double()
            labels = torch.arange(images) % 2
            minimise(features, labels, features[:2], features[0, :2], 0.01, max_iter=1)
            assert set(seen) == {threads}
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_held_out_answers_of_a_group_are_by_a_fit_without_it() -> None:
    """Each fold by a fit of its own, on the rest that scikit-learn's GroupKFold leaves."""
    z, labels = torch.from_numpy(FEATURES), torch.from_numpy(CLASSES)
    groups = torch.arange(N) // 4
    answers = held_out_logits(z, labels, 3, 0.1, groups=groups)
    start = z.new_zeros(3, D), z.new_zeros(3)
    for rest, out in GroupKFold(FOLDS).split(z, groups=groups):
        fit = minimise(z[rest], labels[rest], *start, 0.1, **STOPPING)
        torch.testing.assert_close(
            answers[out], z[out] @ fit.weight.T + fit.bias, atol=1e-4, rtol=1e-4
        )


def test_bursts_that_are_recognised_are_not_taken_for_knowledge() -> None:
    """Classes are drawn by group, and features tell the group alone."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(400) // 4
    labels = torch.randint(0, 2, (100,), generator=generator)[groups]
    near = torch.randn(100, 200, generator=generator, dtype=torch.float64)[groups]
    z = near + 0.01 * torch.randn(400, 200, generator=generator, dtype=torch.float64)
    assert fit_head(z, labels, 2).accuracy(labels) > 0.95
    assert 0.3 < fit_head(z, labels, 2, groups=groups).accuracy(labels) < 0.7


@pytest.mark.parametrize(
    ("images", "groups", "folds"), [(3, None, True), (2, None, False), (6, 3, True), (6, 2, False)]
)
def test_fewer_images_or_groups_than_folds_are_not_held_out(
    images: int, groups: int | None, folds: bool
) -> None:
    z, labels = torch.from_numpy(FEATURES[:images]), torch.from_numpy(CLASSES[:images])
    of_images = None if groups is None else torch.arange(images) % groups
    fit = fit_head(z, labels, 3, (0.1,), groups=of_images)
    assert (fit.held_out is not None) == folds
