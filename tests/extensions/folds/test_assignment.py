"""Folds against scikit-learn's, and the interval against its formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.model_selection import StratifiedGroupKFold

from vit.errors import UserError
from vit.extensions.folds.cli_folds import _table
from vit.extensions.folds.interval import corrected_interval
from vit.extensions.transfer.fold_lists import fold_of_each

NAMES = ["cat", "dog", "owl"]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(2, 6), st.integers(18, 60))
def test_each_image_is_in_one_fold_and_classes_have_equal_shares(
    seed: int, folds: int, images: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.arange(images) % 3)
    fold_of = fold_of_each(labels, None, NAMES, folds, seed)
    assert sorted(set(fold_of)) == [*range(folds)]
    for label in range(3):
        counts = np.bincount(fold_of[labels == label], minlength=folds)
        assert counts.max() - counts.min() <= 1
    assert (fold_of == fold_of_each(labels, None, NAMES, folds, seed)).all()
    assert (fold_of != fold_of_each(labels, None, NAMES, folds, seed + 1)).any()


@pytest.mark.parametrize("seed", range(3))
def test_groups_stay_whole_as_scikit_learn_divides_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    groups = np.sort(random.integers(-9, 30, 200))
    labels = random.integers(0, 3, 200)
    fold_of = fold_of_each(labels, groups, NAMES, 4, seed)
    assert all(len(set(fold_of[groups == group])) == 1 for group in groups)
    splitter = StratifiedGroupKFold(4, shuffle=True, random_state=seed)
    for fold, (_, out) in enumerate(splitter.split(labels, labels, groups)):
        assert np.flatnonzero(fold_of == fold).tolist() == sorted(out)


def test_images_with_several_labels_count_for_each_of_them() -> None:
    random = np.random.default_rng(0)
    labels = (random.random((200, 3)) < [0.6, 0.3, 0.1]).astype(np.float32)
    bare = ~labels.any(1)
    assert bare.sum() > 10
    fold_of = fold_of_each(labels, None, NAMES, 5, 0)
    assert np.bincount(fold_of).min() >= 30
    for column in [*(labels.T > 0), bare]:
        counts = np.bincount(fold_of[column], minlength=5)
        assert counts.max() - counts.min() <= 3, counts
    groups = np.arange(200) // 4
    fold_of = fold_of_each(labels, groups, NAMES, 5, 0)
    assert all(len(set(fold_of[groups == group])) == 1 for group in groups)
    labels[bare.argmax() + 1 :][bare[bare.argmax() + 1 :], 0] = 1  # one image without labels
    assert len(fold_of_each(labels, None, NAMES, 5, 0)) == 200


def test_a_class_with_fewer_images_or_groups_than_folds_is_refused() -> None:
    labels = np.repeat([0, 1, 2], [9, 4, 9])
    assert len(fold_of_each(labels, None, NAMES, 4, 0)) == 22
    with pytest.raises(UserError, match="--folds 5: each class needs as many images, and 'dog'"):
        fold_of_each(labels, None, NAMES, 5, 0)
    groups = np.array([*range(9), 20, 20, 21, 22, *range(30, 39)])
    assert len(fold_of_each(labels, groups, NAMES, 3, 0)) == 22
    with pytest.raises(UserError, match=r"as many groups, and 'dog' has 3; give fewer folds"):
        fold_of_each(labels, groups, NAMES, 4, 0)
    ones = np.eye(3, dtype=np.float32)[labels]
    with pytest.raises(UserError, match="'dog' has 4"):
        fold_of_each(ones, None, NAMES, 5, 0)


def test_the_interval_is_the_closed_form() -> None:
    scores = [0.8, 0.84, 0.78, 0.9, 0.88]
    mean = sum(scores) / 5
    variance = sum((score - mean) ** 2 for score in scores) / 4
    half = 2.7764451051977934 * math.sqrt(variance * (1 / 5 + 1 / 4))  # t with 4 degrees, 97.5 %
    low, high = corrected_interval(scores, [1 / 4] * 5)
    assert (low, high) == pytest.approx((mean - half, mean + half), abs=1e-12)
    usual = stats.ttest_1samp(scores, 0).confidence_interval(0.95)
    assert corrected_interval(scores, [0] * 5) == pytest.approx((usual.low, usual.high))
    assert corrected_interval([0.1, 0.9], [1, 1]) == (0, 1)


def test_equal_scores_are_not_shown_as_an_interval_of_no_width() -> None:
    row = {"fold": 1, "train": 20, "images": 10, "steps": 6, "score": 1.0}
    result = {"metric": "acc1", "folds": [row, row], "mean": 1.0, "interval": [1.0, 1.0],
              "method": "t", "images": 20, "pooled": 1.0}  # fmt: skip
    assert "equal scores of all folds give no interval" in _table(result)
    assert "95 % interval 0.8000 to 1.0000" in _table(result | {"interval": [0.8, 1.0]})
