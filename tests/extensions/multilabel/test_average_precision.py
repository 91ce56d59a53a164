"""Scores of several labels per image against scikit-learn and torchmetrics."""

from math import nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torchmetrics.classification import MultilabelAveragePrecision

from tests.training.test_metrics import CLASSES, add_up, state_bytes
from vit.extensions.multilabel import average_precision as module
from vit.extensions.multilabel.average_precision import average_precision
from vit.extensions.multilabel.scores import MultilabelMetrics

pytestmark = pytest.mark.filterwarnings("ignore")

K, N = 7, 203
RANDOM = torch.Generator().manual_seed(0)
LABELS = (torch.rand(N, K, generator=RANDOM) < 0.3).float()
SCORES = torch.rand(N, K, generator=RANDOM)


def evaluated(scores, labels, batch=32) -> MultilabelMetrics:
    metrics = MultilabelMetrics(scores.shape[1])
    metrics.reset()
    for p, y in zip(scores.split(batch), labels.split(batch), strict=True):
        metrics.update(p, y, p.mean())
    return metrics


def test_two_processes_give_the_figures_of_one() -> None:
    whole = evaluated(SCORES, LABELS)
    shares = [evaluated(SCORES[r::2], LABELS[r::2]) for r in range(2)]
    add_up(shares)
    for name, value in whole.compute().items():
        torch.testing.assert_close(shares[0].compute()[name], value, rtol=1e-6, atol=0, msg=name)


def test_a_process_without_images_has_scores_to_share() -> None:
    metrics = MultilabelMetrics(K)
    metrics.reset()
    [shape] = {tuple(t.shape) for t in metrics.scores["map"].preds}
    assert shape[1:] == (K,)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    images=st.integers(1, 40),
    classes=st.integers(6, 12),
    levels=st.sampled_from([2, 5, 1000]),
    seed=st.integers(0, 999),
)
def test_average_precision_is_that_of_torchmetrics_over_the_classes_with_images(
    images: int, classes: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (images, classes), generator=generator) / levels
    labels = (torch.rand(images, classes, generator=generator) < 0.3).long()
    each = MultilabelAveragePrecision(classes, average=None)(scores, labels)
    reference = each[labels.any(0)].mean() if labels.any() else torch.tensor(0.0)
    ours = evaluated(scores, labels, batch=7).compute()["map"]
    torch.testing.assert_close(ours, reference, atol=1e-6, rtol=1e-6)


def test_average_precision_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluated(SCORES, LABELS).compute()["map"]
    monkeypatch.setattr(module, "SORTED_TOGETHER", 2 * N)
    assert evaluated(SCORES, LABELS).compute()["map"] == whole


def test_scores_of_21843_classes_are_kept_in_30_mb() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(200, CLASSES, generator=generator)
    labels = (torch.rand(200, CLASSES, generator=generator) < 0.001).long()
    metrics = evaluated(scores, labels, batch=50)
    assert 0 < metrics.compute()["map"] < 0.1
    assert 100_000 < state_bytes(metrics) < 30e6
    some = range(0, CLASSES, 500)
    each = average_precision(scores[:, some].T, labels[:, some].T)
    expected = [
        average_precision_score(labels[:, k], scores[:, k]) if labels[:, k].any() else nan
        for k in some
    ]
    assert each.tolist() == pytest.approx(expected, nan_ok=True)
