"""Scores against scikit-learn and torchmetrics, and their sums over processes."""

from math import nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier
from sklearn.metrics import (
    accuracy_score,
    balanced_accuracy_score,
    f1_score,
    log_loss,
    top_k_accuracy_score,
)
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score

from vit.training.metrics import EvaluationMetrics

pytestmark = pytest.mark.filterwarnings("ignore")

K, N = 7, 203
RANDOM = torch.Generator().manual_seed(0)
PROBABILITIES = (torch.randn(N, K, generator=RANDOM) * 2).softmax(-1)
LABELS = torch.randint(K - 1, (N,), generator=RANDOM)  # class 6 has no image


def evaluated(probabilities, labels, batch=32) -> EvaluationMetrics:
    metrics = EvaluationMetrics(probabilities.shape[1])
    metrics.reset()
    for p, y in zip(probabilities.split(batch), labels.split(batch), strict=True):
        metrics.update(p, y, torch.nn.functional.nll_loss(p.log(), y))
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


def test_two_processes_give_the_figures_of_one() -> None:
    whole = evaluated(PROBABILITIES, LABELS)
    shares = [evaluated(PROBABILITIES[r::2], LABELS[r::2]) for r in range(2)]
    add_up(shares)
    assert shares[0].images.compute() == N
    for name, value in whole.compute().items():
        torch.testing.assert_close(shares[0].compute()[name], value, rtol=1e-6, atol=0, msg=name)


def add_up(shares: list) -> None:
    """What torchmetrics does with the states of all processes."""
    for metrics in zip(*([m.loss, m.images, *m.scores.values()] for m in shares), strict=True):
        for name in metrics[0]._reductions:
            states = [getattr(metric, name) for metric in metrics]
            summed = sum(states[1:], states[0])  # tensors are added, lists joined
            setattr(metrics[0], name, summed)


def test_a_batch_whose_loss_is_nan_is_part_of_the_mean() -> None:
    metrics = EvaluationMetrics(K)
    metrics.temperature = 2.0
    metrics.reset()
    whole, broken = torch.zeros(2, K), torch.full((2, K), nan)
    for logits in (whole, broken):
        metrics.add(logits, torch.tensor([0, 1]), logits.mean())
    values = metrics.compute()
    assert all(values[name].isnan() for name in ("loss", "nll", "nll_scaled"))


def test_sums_are_kept_in_double_precision() -> None:
    metrics = evaluated(PROBABILITIES, LABELS)
    assert metrics.loss.compute().dtype == torch.float64
    assert metrics.scores["ece"].compute().dtype == torch.float64


@settings(derandomize=True, deadline=None, max_examples=25)
@given(
    images=st.integers(1, 40),
    classes=st.integers(6, 12),
    levels=st.sampled_from([2, 5, 1000]),
    seed=st.integers(0, 999),
)
def test_macro_f1_is_that_of_torchmetrics(
    images: int, classes: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(levels, (images, classes), generator=generator) / levels
    labels = torch.randint(classes // 2, (images,), generator=generator)
    ours = evaluated(scores.softmax(-1), labels, batch=7)
    macro = MulticlassF1Score(classes, average="macro")
    torch.testing.assert_close(ours.compute()["f1"], macro(scores.softmax(-1), labels))


def test_the_top_five_of_equal_scores_are_the_first_classes() -> None:
    probabilities = torch.full((9, 9), 1 / 9)
    assert evaluated(probabilities, torch.arange(9)).compute()["acc5"] == pytest.approx(5 / 9)
    assert "acc5" not in evaluated(probabilities[:, :5], torch.arange(9) % 5).compute()


CLASSES = 21_843  # of ImageNet-21k; torchmetrics' table of macro F1 has 3.8 GB there


def state_bytes(metrics: EvaluationMetrics) -> int:
    states = [getattr(m, name) for m in metrics.modules() for name in getattr(m, "_defaults", ())]
    lists = [state if isinstance(state, list) else [state] for state in states]
    return sum(tensor.nbytes for tensors in lists for tensor in tensors)


def test_scores_of_21843_classes_are_kept_in_1_mb() -> None:
    """Macro F1, and the top five of equal scores in bfloat16."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(200, CLASSES, generator=generator).bfloat16()
    labels = torch.randint(CLASSES, (200,), generator=generator)
    labels[::2] = scores[::2].argmax(1)
    metrics = evaluated(scores, labels, batch=50)
    figures = metrics.compute()
    assert 100_000 < state_bytes(metrics) < 1e6
    p, y = scores.float().numpy(), labels.numpy()
    assert figures["f1"].item() == pytest.approx(f1_score(y, p.argmax(1), average="macro"))
    first_five = np.argsort(-p, axis=1, kind="stable")[:, :5]
    hits = (first_five == y[:, None]).any(1).mean()
    assert figures["acc5"].item() == pytest.approx(hits)
