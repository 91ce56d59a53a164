"""Scores of how unlike known classes an image is, against NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.covariance import LedoitWolf
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from vit.confidence import energy
from vit.extensions.trust.trust import Trust
from vit.extensions.trust.unknown import SCORES, References, all_scores, outside, unlikeness

RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, 5, 400)
CENTRES = 3 + RANDOM.normal(size=(5, 24))
TRAIN = CENTRES[LABELS] + RANDOM.normal(size=(400, 24)) @ RANDOM.normal(size=(24, 24)) / 4
QUERIES = 3 + 1.5 * RANDOM.normal(size=(60, 24))


def references(features: np.ndarray = TRAIN, labels: np.ndarray = LABELS) -> References:
    return References.of(torch.from_numpy(features).float(), torch.from_numpy(labels))


def by_formula(axes: np.ndarray) -> np.ndarray:
    """Mahalanobis distances to the nearest mean, of unit features in the directions `d p`."""
    train, queries = normalize(TRAIN) @ axes, normalize(QUERIES) @ axes
    means = np.stack([train[LABELS == k].mean(0) for k in range(5)])
    precision = LedoitWolf(assume_centered=True).fit(train - means[LABELS]).precision_
    offsets = queries[:, None] - means
    return np.sqrt(np.einsum("nki,ij,nkj->nk", offsets, precision, offsets).min(1))


@pytest.mark.parametrize("directions", [24, 7])
def test_the_mahalanobis_score_is_that_of_the_formula(
    directions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.extensions.trust.unknown.DIRECTIONS", directions)
    axes = PCA(directions).fit(normalize(TRAIN)).components_.T
    found = references().scores(torch.from_numpy(QUERIES))["mahalanobis"]
    np.testing.assert_allclose(found.numpy(), by_formula(axes), rtol=0.003)


def test_the_energy_is_that_of_the_papers() -> None:
    logits = RANDOM.normal(size=(20, 6))
    tensor = torch.from_numpy(logits)
    np.testing.assert_allclose(energy(tensor).numpy(), -logsumexp(logits, axis=1), rtol=1e-5)
    joint = -np.log1p(np.exp(logits)).sum(1)
    np.testing.assert_allclose(energy(tensor, multilabel=True).numpy(), joint, rtol=1e-5)


@pytest.mark.parametrize(("width", "classes"), [(24, 2), (384, 10), (6144, 3), (512, 1500)])
def test_references_of_any_size_stay_below_two_megabytes(width: int, classes: int) -> None:
    count = max(60, classes)
    features, labels = RANDOM.normal(size=(count, width)), np.arange(count) % classes
    made = references(features, labels)
    assert sum(tensor.nbytes for tensor in vars(made).values()) < 1.8e6
    assert made.means.shape[0] == classes and made.neighbours.shape[1] == width
    assert made.scores(torch.from_numpy(features))["mahalanobis"].isfinite().all()


def test_neighbours_are_drawn_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.extensions.trust.unknown.NEIGHBOURS", 9)
    labels = np.repeat([0, 1, 2], [90, 8, 2])
    made = references(np.eye(3)[labels] + 0.01 * RANDOM.normal(size=(100, 3)), labels)
    drawn = made.neighbours.argmax(1).bincount()
    assert drawn.tolist() == [4, 3, 2] or drawn.tolist() == [3, 4, 2]


@pytest.mark.parametrize("chosen", ["energy", "mahalanobis"])
def test_an_image_is_as_unusual_as_the_more_unusual_of_two_scores(chosen: str) -> None:
    usual, found = ({name: RANDOM.normal(size=n) for name in SCORES} for n in (40, 25))
    ranks = {name: (found[name][:, None] > usual[name]).mean(1) for name in SCORES}
    expected = np.maximum(ranks[chosen], ranks["mahalanobis"])
    tensors = ({k: torch.from_numpy(v) for k, v in scores.items()} for scores in (found, usual))
    np.testing.assert_allclose(unlikeness(*tensors, chosen).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [1 - 1e-6, 1 + 1e-6])
def test_scores_that_were_rounded_otherwise_have_the_same_ranks(factor: float) -> None:
    usual = {name: torch.from_numpy(RANDOM.normal(size=40)) for name in SCORES}
    rounded = {name: factor * score for name, score in usual.items()}
    for chosen in SCORES:
        ranks = (unlikeness(scores, usual, chosen) for scores in (usual, rounded))
        torch.testing.assert_close(*ranks, rtol=0, atol=0)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_of_images_like_val_the_share_is_inside(share: float) -> None:
    """And of those far from all train images none, although their logits are sure ones."""
    made = references()
    chosen = RANDOM.permutation(400)  # logits that have nothing to do with the features
    logits, features = torch.from_numpy(RANDOM.normal(size=(400, 3))), torch.from_numpy(TRAIN)
    val, fresh = ((logits[part], features[part]) for part in (chosen[:199], chosen[199:]))
    trust = Trust(usual=torch.stack(list(all_scores(*val, made).values())), **vars(made))
    refused = trust.outside(*val, share, multilabel=False)
    assert 0 <= 199 - 200 * share - refused.sum() <= 2  # equal but for rounding
    refused = trust.outside(*fresh, share, multilabel=False).double().mean()
    assert abs(float(refused) - (1 - share)) < 0.1
    far = torch.full((9, 3), 9.0), -torch.ones(9, 24)
    assert trust.outside(*far, share, multilabel=False).all()


@pytest.mark.parametrize("seed", range(8))
def test_an_image_is_outside_or_not_whatever_its_batch(seed: int) -> None:
    random = np.random.default_rng(seed)
    usual, found = ({k: torch.from_numpy(random.normal(size=n)) for k in SCORES} for n in (7, 60))
    whole = outside(found, usual, "energy", 0.5)
    images = ({k: v[i, None] for k, v in found.items()} for i in range(60))
    assert whole.any()
    assert torch.equal(whole, torch.cat([outside(image, usual, "energy", 0.5) for image in images]))


def test_few_measured_images_refuse_no_more_by_two_scores_than_the_share() -> None:
    """With 19 images the larger of two ranks among these alone refused 9.7 %, for 5."""
    draws, refused = 4_000, 0
    for _ in range(draws):
        drawn = {name: torch.from_numpy(RANDOM.normal(size=20)) for name in SCORES}
        usual, new = ({k: v[part] for k, v in drawn.items()} for part in (slice(19), slice(19, 20)))
        refused += int(outside(new, usual, "energy", 0.95).sum())
    assert refused / draws < 0.05 + 3 * (0.05 * 0.95 / draws) ** 0.5


def test_features_that_do_not_differ_have_finite_scores() -> None:
    made = references(np.ones((30, 8)), np.arange(30) % 3)
    assert all(score.isfinite().all() for score in made.scores(torch.ones(2, 8)).values())


@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.parametrize("multilabel", [False, True])
def test_by_the_energy_alone_the_share_of_images_like_val_is_inside(
    share: float, multilabel: bool
) -> None:
    logits = torch.from_numpy(RANDOM.normal(size=(20_000, 3)))
    usual = energy(logits[:1_999], multilabel=multilabel)
    trust = Trust(usual=usual[None])
    refused = trust.outside(logits, None, share, multilabel=multilabel)
    cut = np.sort(usual.numpy())[round(2_000 * share) - 1]
    expected = energy(logits, multilabel=multilabel).numpy() > cut
    assert (refused.numpy() != expected).sum() <= 20  # equal but for rounding
    assert abs(float(refused[1_999:].double().mean()) - (1 - share)) < 0.03
