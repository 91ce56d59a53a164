"""Nearest neighbours and their votes against scikit-learn and NumPy."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from vit.errors import UserError
from vit.extensions.evaluation.knn import knn_accuracy, leave_one_out, neighbours, vote

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(5, 12))
LABELS = RANDOM.integers(0, 5, 90)
TRUTH = RANDOM.integers(0, 5, 70)
TRAIN = (CENTRES[LABELS] + 1.2 * RANDOM.normal(size=(90, 12))).astype(np.float32)
QUERIES = (CENTRES[TRUTH] + 1.2 * RANDOM.normal(size=(70, 12))).astype(np.float32)


def sklearn_votes(k: int, temperature: float) -> np.ndarray:
    search = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute")
    distance, places = search.fit(TRAIN.astype(np.float64)).kneighbors(QUERIES.astype(np.float64))
    weights = np.exp((1 - distance) / temperature)
    votes = np.zeros((len(QUERIES), 5))
    for row in range(len(QUERIES)):
        for weight, place in zip(weights[row], places[row], strict=True):
            votes[row, LABELS[place]] += weight
    return votes / votes.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("k", [1, 10, 90])
@pytest.mark.parametrize("temperature", [0.07, 1.0])
def test_votes_are_those_of_sklearns_neighbours(k: int, temperature: float) -> None:
    similarities, places = neighbours(TRAIN, QUERIES, k)
    found = vote(similarities, torch.from_numpy(LABELS)[places], 5, temperature)
    expected = sklearn_votes(k, temperature)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-6)
    accuracy = knn_accuracy((TRAIN, LABELS), (QUERIES, TRUTH), 5, ks=(k,), temperature=temperature)
    assert accuracy[k] == pytest.approx((expected.argmax(1) == TRUTH).mean(), abs=1e-6)


@pytest.mark.parametrize(("num_queries", "num_candidates"), [(1, 1), (7, 13), (100, 4), (3, 100)])
def test_chunks_change_nothing(num_queries: int, num_candidates: int) -> None:
    whole = neighbours(TRAIN, QUERIES, 20)
    parts = neighbours(TRAIN, QUERIES, 20, num_queries=num_queries, num_candidates=num_candidates)
    torch.testing.assert_close(whole[0], parts[0], rtol=0, atol=1e-12)
    assert torch.equal(whole[1], parts[1])


@pytest.mark.parametrize(("k", "temperature"), [(0, 0.07), (91, 0.07), (1, 0)])
def test_impossible_numbers_are_refused(k: int, temperature: float) -> None:
    message = f"k={k} is not between 1 and the 90" if temperature else "temperature=0"
    with pytest.raises(UserError, match=message):
        knn_accuracy((TRAIN, LABELS), (QUERIES, TRUTH), 5, ks=(k,), temperature=temperature)


@pytest.mark.parametrize("k", [1, 20, 200])
def test_an_image_is_named_by_others_alone(k: int) -> None:
    features = np.concatenate([TRAIN[:30], TRAIN[:3], TRAIN[:3]])  # three images thrice
    labels = np.concatenate([LABELS[:30], LABELS[:3], LABELS[:3]])
    unit = features.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = []
    for i, row in enumerate(unit):
        others = [j for j in range(len(unit)) if j != i]
        nearest = sorted(others, key=lambda j: -row @ unit[j])[:k]
        votes = np.zeros(5)
        for j in nearest:
            votes[labels[j]] += np.exp(row @ unit[j] / 0.07)
        expected.append(votes)
    names = leave_one_out(features, torch.from_numpy(labels), 5, k).numpy()
    for votes, name in zip(expected, names, strict=True):
        assert votes[name] == pytest.approx(votes.max(), rel=1e-6)
