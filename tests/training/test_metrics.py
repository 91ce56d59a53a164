"""Scores against scikit-learn and torchmetrics, and their sums over processes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    top_k_accuracy_score,
)
from torchmetrics.classification import (
    MulticlassCalibrationError,
    MulticlassF1Score,
    MultilabelAveragePrecision,
)

from vit.training.metrics import EvaluationMetrics, average_precision

pytestmark = pytest.mark.filterwarnings("ignore")

K, N = 7, 203
RANDOM = torch.Generator().manual_seed(0)
PROBABILITIES = (torch.randn(N, K, generator=RANDOM) * 2).softmax(-1)
LABELS = torch.randint(K - 1, (N,), generator=RANDOM)  # class 6 has no image
MANY = (torch.rand(N, K, generator=RANDOM) < 0.3).float()
SCORES = torch.rand(N, K, generator=RANDOM)


def evaluated(probabilities, labels, *, multilabel=False, batch=32):
    metrics = EvaluationMetrics(probabilities.shape[1], multilabel=multilabel)
    metrics.reset()
    for p, y in zip(probabilities.split(batch), labels.split(batch), strict=True):
        loss = torch.nn.functional.nll_loss(p.log(), y) if y.dim() == 1 else p.mean()
        metrics.update(p, y, loss)
    return metrics


def test_scores_are_scikit_learns() -> None:
    scores = {k: v.item() for k, v in evaluated(PROBABILITIES, LABELS).compute().items()}
    p, y = PROBABILITIES.double().numpy(), LABELS.numpy()
    assert scores.pop("loss") == pytest.approx(log_loss(y, p, labels=range(K)), rel=1e-6)
    assert scores.pop("acc1") == pytest.approx(accuracy_score(y, p.argmax(1)))
    top5 = top_k_accuracy_score(y, p, k=5, labels=range(K))
    assert scores.pop("acc5") == pytest.approx(top5)
    assert scores.pop("f1") == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    assert scores.pop("recall") == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    constant = DummyClassifier(strategy="most_frequent").fit(p, y).score(p, y)
    assert scores.pop("constant_acc1") == pytest.approx(constant)
    reference = MulticlassCalibrationError(K, n_bins=15, norm="l1")
    assert scores.pop("ece") == pytest.approx(reference(PROBABILITIES, LABELS).item(), rel=1e-5)
    assert not scores


@pytest.mark.parametrize("multilabel", [False, True])
def test_two_processes_give_the_figures_of_one(multilabel: bool) -> None:
    p, y = (SCORES, MANY) if multilabel else (PROBABILITIES, LABELS)
    whole = evaluated(p, y, multilabel=multilabel)
    shares = [evaluated(p[r::2], y[r::2], multilabel=multilabel) for r in range(2)]
    for name in whole.scores:
        add_up([share.scores[name] for share in shares])
    add_up([share.loss for share in shares])
    add_up([share.images for share in shares])
    assert shares[0].images.compute() == N
    for name, value in whole.compute().items():
        torch.testing.assert_close(shares[0].compute()[name], value, rtol=1e-6, atol=0, msg=name)


def add_up(metrics: list) -> None:
    """What torchmetrics does with the states of all processes."""
    for name in metrics[0]._reductions:
        states = [getattr(metric, name) for metric in metrics]
        summed = sum(states[1:], states[0])  # tensors are added, lists joined
        setattr(metrics[0], name, summed)


def test_sums_are_kept_in_double_precision() -> None:
    metrics = evaluated(PROBABILITIES, LABELS)
    assert metrics.loss.compute().dtype == torch.float64
    assert metrics.scores["ece"].compute().dtype == torch.float64


def test_a_process_without_images_has_scores_to_share() -> None:
    metrics = EvaluationMetrics(K, multilabel=True)
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
def test_scores_are_torchmetrics(images: int, classes: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (images, classes), generator=generator) / levels
    labels = torch.randint(classes // 2, (images,), generator=generator)
    ours = evaluated(scores.softmax(-1), labels, batch=7)
    macro = MulticlassF1Score(classes, average="macro")
    torch.testing.assert_close(ours.compute()["f1"], macro(scores.softmax(-1), labels))
    many = (torch.rand(images, classes, generator=generator) < 0.3).long()
    reference = MultilabelAveragePrecision(classes)(scores, many)
    ours = evaluated(scores, many, multilabel=True, batch=7)
    torch.testing.assert_close(ours.compute()["map"], reference, atol=1e-6, rtol=1e-6)


def test_the_top_five_of_equal_scores_are_the_first_classes() -> None:
    probabilities = torch.full((9, 9), 1 / 9)
    assert evaluated(probabilities, torch.arange(9)).compute()["acc5"] == pytest.approx(5 / 9)
    assert "acc5" not in evaluated(probabilities[:, :5], torch.arange(9) % 5).compute()


def test_average_precision_in_parts_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluated(SCORES, MANY, multilabel=True).compute()["map"]
    monkeypatch.setattr("vit.training.metrics._SORTED_TOGETHER", 2 * N)
    assert evaluated(SCORES, MANY, multilabel=True).compute()["map"] == whole


CLASSES = 21_843  # of ImageNet-21k; torchmetrics' table of macro F1 has 3.8 GB there


def state_bytes(metrics: EvaluationMetrics) -> int:
    states = [getattr(m, name) for m in metrics.modules() for name in getattr(m, "_defaults", ())]
    lists = [state if isinstance(state, list) else [state] for state in states]
    return sum(tensor.nbytes for tensors in lists for tensor in tensors)


@pytest.mark.parametrize("multilabel", [False, True])
def test_scores_of_21843_classes_are_kept_in_30_mb(multilabel: bool) -> None:
    """Macro F1, top five of equal scores in bfloat16, average precision of every score."""
    images = 200
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(images, CLASSES, generator=generator)
    if multilabel:
        labels = (torch.rand(images, CLASSES, generator=generator) < 0.001).long()
    else:
        scores = scores.bfloat16()
        labels = torch.randint(CLASSES, (images,), generator=generator)
        labels[::2] = scores[::2].argmax(1)
    metrics = evaluated(scores, labels, multilabel=multilabel, batch=50)
    figures = metrics.compute()
    assert 100_000 < state_bytes(metrics) < (30e6 if multilabel else 1e6)
    p, y = scores.float().numpy(), labels.numpy()
    if multilabel:
        some = range(0, CLASSES, 500)
        each = average_precision(scores[:, some].T, labels[:, some].T)
        expected = [average_precision_score(y[:, k], p[:, k]) if y[:, k].any() else 0 for k in some]
        assert each.tolist() == pytest.approx(expected)
        assert 0 < figures["map"] < 0.1
    else:
        assert figures["f1"].item() == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
        first_five = np.argsort(-p, axis=1, kind="stable")[:, :5]
        hits = (first_five == y[:, None]).any(1).mean()
        assert figures["acc5"].item() == pytest.approx(hits)
