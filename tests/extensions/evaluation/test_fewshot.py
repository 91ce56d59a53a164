"""Few-shot accuracy against the normal equations, solved directly."""

import numpy as np
import pytest

from vit.errors import UserError
from vit.extensions.evaluation.fewshot import L2, Ridge, check_shots, draw_shots, few_shot_accuracy

Pair = tuple[np.ndarray, np.ndarray]


def clouds(num: int, width: int, num_classes: int = 4, seed: int = 0) -> Pair:
    """Overlapping clouds with different mean and spread per direction."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, num_classes, num)
    centres = np.random.default_rng(99).normal(size=(num_classes, width))
    points = centres[labels] + random.normal(size=(num, width)) * 1.5
    return (points * np.geomspace(0.01, 30, width) + 5).astype(np.float32), labels


def whitened(train: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Reference with the constant feature of 100, as in the paper's code."""
    train, other = train.astype(np.float64), other.astype(np.float64)
    white = (other - train.mean(axis=0)) / (train.std(axis=0) + 1e-5)
    return np.concatenate([white, np.full((len(other), 1), 100.0)], axis=1)


def targets(labels: np.ndarray, num_classes: int) -> np.ndarray:
    return np.where(labels[:, None] == np.arange(num_classes), 1.0, -1.0)


@pytest.mark.parametrize(("num", "width"), [(60, 20), (60, 59), (20, 60)])
@pytest.mark.parametrize("l2", [0.5, L2])
def test_scores_solve_the_normal_equations(num: int, width: int, l2: float) -> None:
    (x, y), (queries, _) = clouds(num, width), clouds(50, width, seed=1)
    design = whitened(x, x)
    weights = np.linalg.solve(design.T @ design + l2 * np.eye(width + 1), design.T @ targets(y, 4))
    scores = Ridge.fit(x, y, 4).scores(queries, l2)
    np.testing.assert_allclose(scores, whitened(x, queries) @ weights, rtol=0, atol=1e-6)


def test_a_feature_that_never_changes_does_no_harm() -> None:
    x, y = clouds(40, 8)
    x[:, 3] = 7
    scores = Ridge.fit(x, y, 4).scores(x)
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(
        scores, Ridge.fit(np.delete(x, 3, 1), y, 4).scores(np.delete(x, 3, 1))
    )


def test_images_are_drawn_as_big_vision_draws_them() -> None:
    labels = np.random.default_rng(5).integers(0, 3, 50)
    for seed in (0, 1, 2):
        rng = np.random.default_rng(seed)
        permuted = [rng.permutation(np.where(labels == c)[0]) for c in range(3)]
        for shots in (1, 4):
            expected = np.concatenate([places[:shots] for places in permuted])
            assert draw_shots(labels, 3, shots, seed).tolist() == expected.tolist()


def test_too_few_images_name_the_class_what_it_has_and_what_is_wanted() -> None:
    labels = np.array([0] * 6 + [1] * 2 + [2] * 4)
    check_shots(labels, ["cat", "dog", "emu"], [1, 2])
    with pytest.raises(
        UserError, match=r"class 'dog' has 2 training images, 5 shots want 5 \(2 cl"
    ):
        check_shots(labels, ["cat", "dog", "emu"], [1, 5])
    with pytest.raises(UserError, match="class 'fox' has 0"):
        check_shots(labels, ["cat", "dog", "emu", "fox"], [1])
    with pytest.raises(UserError, match="shots=0 must be"):
        check_shots(labels, ["cat", "dog", "emu"], [0])


@pytest.mark.parametrize("l2", [0.0, -1.0, float("nan")])
def test_regularisation_is_positive(l2: float) -> None:
    with pytest.raises(UserError, match="l2="):
        few_shot_accuracy(clouds(40, 4), clouds(4, 4), list("abcd"), shots=(1,), l2=l2)
