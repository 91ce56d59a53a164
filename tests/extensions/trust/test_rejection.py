"""The choice of a score, against scikit-learn and plain loops."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from vit.extensions.trust.rejection import DEFAULT, Labelled, choose, risks
from vit.logistic import STRENGTHS
from vit.runs.scoring import accuracies

RANDOM = np.random.default_rng(0)


def images(count: int, classes: int, spread: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(count) % classes
    centres = np.random.default_rng(1).normal(size=(classes, 16))
    return centres[labels] + spread * RANDOM.normal(size=(count, 16)), labels


def tensors(pair: tuple[np.ndarray, np.ndarray]) -> Labelled:
    return torch.from_numpy(pair[0]).float(), torch.from_numpy(pair[1])


def plain_area(scores: np.ndarray, wrong: np.ndarray) -> float:
    order = np.argsort(scores)
    return float(np.mean([wrong[order[:i]].mean() for i in range(1, len(order) + 1)]))


def test_risks_and_accuracies_are_those_of_a_loop() -> None:
    scores, wrong = RANDOM.normal(size=57), RANDOM.random(57) < 0.4
    found = torch.from_numpy(scores), torch.from_numpy(wrong)
    assert float(risks(*found).mean()) == pytest.approx(plain_area(scores, wrong))
    ranked = wrong[np.argsort(scores)]
    expected = [1 - ranked[: int(np.ceil(57 * i / 100))].mean() for i in range(1, 101)]
    np.testing.assert_allclose(accuracies(*found), expected)


def test_the_area_of_the_energy_is_that_of_sklearns_probes() -> None:
    (x, y), (queries, truth) = images(300, 4), images(200, 4)
    mean, std = x.mean(0), x.std(0) + 1e-5
    areas = []
    for left_out in range(4):
        known = y != left_out
        probe = LogisticRegression(C=1 / (2 * STRENGTHS[-1] * known.sum()), max_iter=1000)
        probe.fit((x[known] - mean) / std, y[known])
        logits = probe.decision_function((queries - mean) / std)
        wrong = probe.classes_[logits.argmax(1)] != truth  # those left out among them
        areas.append(plain_area(-logsumexp(logits, axis=1), wrong))
    choice = choose(tensors((x, y)), tensors((queries, truth)))
    assert choice.groups == 4
    assert choice.areas["energy"] == pytest.approx(np.mean(areas), abs=0.005)
    assert choice.score == min(choice.areas, key=lambda score: choice.areas[score])
    assert choice == choose(tensors((x, y)), tensors((queries, truth)))


def test_a_score_that_takes_far_classes_for_sure_ones_is_not_chosen() -> None:
    """Three directions with a near and a far class each: a far one looks like a sure near one."""
    labels = np.arange(600) % 6
    x = 0.2 * RANDOM.normal(size=(600, 8))
    x[:, 7] += 2
    x[range(600), labels % 3] += 1 + 3 * (labels // 3)
    choice = choose(tensors((x[:300], labels[:300])), tensors((x[300:], labels[300:])))
    assert choice.score != "energy"
    assert choice.areas["energy"] > choice.areas[choice.score] + 0.1


def test_many_classes_are_left_out_in_ten_groups() -> None:
    train, (queries, truth) = images(150, 25), images(150, 25)
    assert choose(tensors(train), tensors((queries, truth))).groups == 10
    few = truth < 2  # of most groups there is nothing to tell
    assert choose(tensors(train), tensors((queries[few], truth[few]))).groups <= 2


@pytest.mark.parametrize("classes", [1, 2])
def test_of_fewer_than_three_classes_none_is_left_out(classes: int) -> None:
    choice = choose(tensors(images(40, classes)), tensors(images(20, classes)))
    assert (choice.score, choice.areas, choice.groups) == (DEFAULT, {}, 0)
