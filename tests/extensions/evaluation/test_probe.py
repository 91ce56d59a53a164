"""The probe's fits against scikit-learn's, and its protocol step by step."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vit.data.cut import held_out
from vit.errors import UserError
from vit.extensions.evaluation.probe import LogisticProblem, c_values, probe_accuracy

Pair = tuple[np.ndarray, np.ndarray]


def clouds(num: int, num_classes: int, seed: int, width: int = 10) -> Pair:
    """Overlapping clouds far from the origin, long in some directions and flat in others."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num)
    centres = np.random.default_rng(7).normal(size=(num_classes, width))
    points = centres[labels] + 2 * random.normal(size=(num, width))
    return points * np.geomspace(0.1, 5, width) + 3, labels


def tensors(pair: Pair) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(pair[0]), torch.from_numpy(pair[1])


def sklearn(pair: Pair, c: float) -> LogisticRegression:
    return LogisticRegression(C=c, tol=1e-12, max_iter=20_000, solver="newton-cg").fit(*pair)


@pytest.mark.parametrize(
    ("num_classes", "count", "width", "c"),
    [
        *((classes, 150, 10, c) for classes in (2, 4) for c in (1e-4, 1e-2, 1.0, 1e3)),
        (3, 20, 40, 0.01),  # more features than images
    ],
)
def test_a_fit_is_sklearns(num_classes: int, count: int, width: int, c: float) -> None:
    pair = clouds(count, num_classes, seed=0, width=width)
    fit = LogisticProblem(*tensors(pair), num_classes).fit(c, tolerance=1e-9)
    model = sklearn(pair, c)
    assert fit.iterations < 100
    np.testing.assert_allclose(fit.weight.numpy(), model.coef_, rtol=0, atol=1e-6)
    queries = clouds(50, num_classes, seed=1, width=width)[0]
    probabilities = fit.probabilities(torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(probabilities, model.predict_proba(queries), rtol=0, atol=1e-6)


def test_a_fit_that_did_not_converge_is_reported() -> None:
    problem = LogisticProblem(*tensors(clouds(150, 4, seed=0)), 4)
    assert not problem.fit(1.0, max_iterations=2).converged
    assert problem.fit(1.0, max_iterations=2).iterations == 2
    assert problem.fit(1.0).converged


def test_the_grid_is_dinov2s() -> None:
    np.testing.assert_allclose(c_values(45), 10 ** torch.linspace(-6, 5, 45).double().numpy(), 1e-5)
    np.testing.assert_allclose(c_values(), [10.0**power for power in range(-6, 6)])
    assert set(np.round(np.log10(c_values()), 6)) <= set(np.round(np.log10(c_values(45)), 6))
    with pytest.raises(UserError, match="num_c=1"):
        c_values(1)


def expected(train: Pair, selection: Pair, everything: Pair, test: Pair) -> tuple[float, float]:
    """The chosen C and the test accuracy, by scikit-learn."""
    values = c_values(4)
    shares = [sklearn(train, c).score(*selection) for c in values]
    c = values[int(np.argmax(shares))]
    return c, float(sklearn(everything, c).score(*test))


def test_c_is_chosen_on_val_and_the_last_fit_sees_all() -> None:
    train, val, test = (clouds(count, 3, seed=i) for i, count in enumerate((60, 40, 200)))
    both = tuple(np.concatenate(parts) for parts in zip(train, val, strict=True))
    c, accuracy = expected(train, val, both, test)
    found = probe_accuracy(train, test, 3, val=val, num_c=4)
    assert (found.chosen, found.accuracy) == (pytest.approx(c), pytest.approx(accuracy))
    assert list(found.sweep) == c_values(4) and found.converged


def test_without_val_a_tenth_of_each_class_chooses() -> None:
    train, test = clouds(120, 3, seed=0), clouds(200, 3, seed=1)
    names = [str(i) for i in range(120)]
    strata = [str(label) for label in train[1]]
    kept, chosen, _ = held_out(names, strata, seed=0, val_fraction=0.1, test_fraction=0.0)
    assert len(chosen) == sum(round(n / 10) for n in np.bincount(train[1]))
    parts = [(train[0][rows], train[1][rows]) for rows in (kept, chosen)]
    c, accuracy = expected(*parts, train, test)
    found = probe_accuracy(train, test, 3, num_c=4)
    assert (found.chosen, found.accuracy) == (pytest.approx(c), pytest.approx(accuracy))


def test_of_equally_good_values_the_smallest_is_chosen() -> None:
    x = np.array([[-2.0], [-1.5], [1.5], [2.0]] * 3)
    train = x, (x[:, 0] > 0).astype(int)
    found = probe_accuracy(train, train, 2, val=train, num_c=4)
    assert set(found.sweep.values()) == {1.0} and found.chosen == min(found.sweep)


def test_one_image_a_class_leaves_none_to_choose_on() -> None:
    single = np.eye(3), np.arange(3)
    with pytest.raises(UserError, match="no class has two training images"):
        probe_accuracy(single, single, 3)
