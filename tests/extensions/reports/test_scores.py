"""Each score against another package or a closed form."""

import numpy as np
import pytest
from sklearn import metrics as sk

from vit.extensions.reports.scores import (
    average_precision,
    class_scores,
    confusion_matrix,
    errors,
    most_confused,
)
from vit.runs.predictions import Predictions


@pytest.fixture
def answers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 7, 400)
    predicted = np.where(rng.random(400) < 0.6, labels, rng.integers(0, 7, 400))
    return labels, predicted


def test_confusion_matrix_is_sklearns(answers):
    labels, predicted = answers
    expected = sk.confusion_matrix(labels, predicted, labels=range(9))
    assert np.array_equal(confusion_matrix(labels, predicted, 9), expected)


def single(labels, predicted) -> Predictions:
    n = len(labels)
    return Predictions(
        indices=np.arange(n),
        names=[""] * n,
        labels=labels,
        top_classes=predicted[:, None],
        top_probabilities=np.ones((n, 1)),
        label_probabilities=np.ones(n),
    )


def test_precision_recall_and_f1_are_sklearns_with_nan_where_undefined(answers):
    labels, predicted = answers
    labels = np.where(labels == 2, 3, labels)  # no image of class 2
    predicted = np.where(predicted == 4, 5, predicted)  # class 4 never predicted
    ours = class_scores(single(labels, predicted), 8)  # class 7: neither
    precision, recall, f1, count = sk.precision_recall_fscore_support(
        labels, predicted, labels=range(8), zero_division=np.nan
    )
    np.testing.assert_allclose(ours.precision, precision)
    np.testing.assert_allclose(ours.recall, recall)
    np.testing.assert_allclose(ours.f1, f1)
    assert np.array_equal(ours.count, count)
    assert np.isnan(ours.recall[2]) and np.isnan(ours.precision[4]) and np.isnan(ours.f1[7])


def test_most_confused_lists_errors_only_largest_first():
    matrix = np.array([[50, 3, 0], [7, 20, 1], [0, 3, 9]])
    assert most_confused(matrix) == [(1, 0, 7), (0, 1, 3), (2, 1, 3), (1, 2, 1)]
    assert most_confused(matrix, limit=2) == [(1, 0, 7), (0, 1, 3)]
    assert most_confused(np.diag([4, 5])) == []


def test_average_precision_is_sklearns_also_with_ties():
    rng = np.random.default_rng(5)
    labels = (rng.random((80, 4)) < 0.3).astype(int)
    scores = rng.random((80, 4)).round(1)
    scores[:, 3] = 0.5
    ours = average_precision(scores, labels)
    np.testing.assert_allclose(ours, sk.average_precision_score(labels, scores, average=None))


def test_average_precision_ranks_nan_last():
    scores = np.array([[0.3], [np.nan], [0.1]])
    assert average_precision(scores, np.array([[1], [0], [1]]))[0] == 1
    assert average_precision(scores, np.array([[0], [1], [0]]))[0] == pytest.approx(1 / 3)
    assert np.isnan(average_precision(scores, np.zeros((3, 1)))[0])  # no positives


def test_an_error_of_several_labels_is_the_first_class_that_is_not_there(few):
    predictions = few(
        labels=np.array([[1, 0], [1, 0], [0, 0]]),
        top_probabilities=np.array([[0.9, 0.8], [0.9, 0.49], [0.6, 0.5]]),
    )
    # Row 0: class 0 is there, class 1 at 0.8 is not. Row 1: class 1 stays below one half.
    assert errors(predictions) == [(0, 1, 0.8), (2, 1, 0.6)]
    assert errors(predictions, np.array([0.5, 0.7])) == [(0, 1, 0.8)]
