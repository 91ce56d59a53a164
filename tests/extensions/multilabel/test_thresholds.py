"""Thresholds per class against scikit-learn's precision-recall curve, and their way to a model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, f1_score
from sklearn.metrics import precision_recall_curve as curve

from vit.extensions.multilabel.average_precision import best_thresholds
from vit.extensions.multilabel.scores import MultilabelMetrics
from vit.extensions.reports.scores import class_lines, class_scores, class_table
from vit.runs.predictions import Predictions
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    images=st.integers(1, 40),
    levels=st.sampled_from([2, 5, 10**6]),
    seed=st.integers(0, 999),
)
def test_a_threshold_has_the_highest_f1_of_scikit_learns_curve(
    images: int, levels: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    # Scores between 0 and 1, as sigmoids give them, often equal.
    scores = ((random.integers(levels, size=(images, 4)) + 0.5) / levels).astype(np.float32)
    labels = random.random((images, 4)) < 0.4
    chosen = best_thresholds(torch.tensor(scores.T), torch.tensor(labels.T).long()).numpy()
    for k in range(4):
        if not labels[:, k].any():
            assert chosen[k] == 0.5
            continue
        precision, recall, _ = curve(labels[:, k], scores[:, k])
        best = (2 * precision * recall / np.maximum(precision + recall, 1e-12)).max()
        assert f1_score(labels[:, k], scores[:, k] > chosen[k]) == pytest.approx(best)


def test_a_threshold_lies_in_the_middle_and_between_neighbours_of_float32() -> None:
    scores, labels = torch.tensor([[0.9, 0.6, 0.2]]), torch.tensor([[1, 1, 0]])
    assert best_thresholds(scores, labels).item() == pytest.approx(0.4)
    low = torch.tensor(0.7)
    high = torch.nextafter(low, torch.tensor(1.0))
    threshold = best_thresholds(torch.stack([low, high])[None], torch.tensor([[0, 1]]))
    assert ((torch.stack([low, high]) > threshold) == torch.tensor([False, True])).all()
    nothing = torch.zeros(2, 3)  # scores that are above no threshold
    assert best_thresholds(nothing, torch.ones(2, 3).long()).tolist() == [0.5, 0.5]


def test_f1_and_exact_match_are_scikit_learns_at_the_thresholds() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(90, 5, generator=generator)
    labels = (torch.rand(90, 5, generator=generator) < 0.3).float()
    chosen = torch.tensor([0.2, 0.9, 0.5, 0.35, 0.61])
    metrics = MultilabelMetrics(5)
    metrics.thresholds = chosen.tolist()
    metrics.reset()
    metrics.update(scores, labels, torch.tensor(0.0))
    figures, answers, truth = metrics.compute(), (scores > chosen).numpy(), labels.numpy()
    assert figures["f1"].item() == pytest.approx(f1_score(truth, answers, average="macro"))
    assert figures["exact"].item() == pytest.approx(accuracy_score(truth, answers))
    assert figures["map"].item() == pytest.approx(average_precision_score(truth, scores.numpy()))
    assert metrics.best_thresholds() == best_thresholds(scores.T, labels.long().T).tolist()
    assert MultilabelMetrics(5).best_thresholds() is None


def test_f1_is_of_the_classes_that_have_images_or_are_predicted() -> None:
    labels = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]]).float()
    scores = torch.tensor([[0.9, 0.1, 0.7, 0.1], [0.8, 0.7, 0.2, 0.1]])
    metrics = MultilabelMetrics(4)
    metrics.reset()
    metrics.update(scores, labels, torch.tensor(0.0))
    each = f1_score(labels, scores > 0.5, average=None, zero_division=float("nan"))
    assert each[:3].tolist() == [1, 1, 0] and metrics.compute()["f1"] == pytest.approx(2 / 3)
    metrics.reset()
    metrics.update(torch.zeros(2, 4), torch.zeros(2, 4), torch.tensor(0.0))
    assert metrics.compute()["f1"] == 0


def test_thresholds_travel_with_a_model_and_follow_its_classes(make_model, tmp_path: Path) -> None:
    extra = {"multilabel": True, "thresholds": [0.1, 0.2, 0.3]}
    save_native(tmp_path, make_model().model, classes=list("abc"), preprocess=None, extra=extra)
    assert inspect_pretrained(tmp_path).extra == extra
    assert load_pretrained(tmp_path)[1].thresholds == [0.1, 0.2, 0.3]
    _, report = load_pretrained(tmp_path, classes=["c", "a", "b"])
    assert report.thresholds == [0.3, 0.1, 0.2]
    _, report = load_pretrained(tmp_path, classes=["x", "y"])  # another head
    assert report.thresholds is None


def test_the_table_of_classes_is_scikit_learns() -> None:
    random = np.random.default_rng(0)
    scores = random.random((60, 3)).astype(np.float32)
    labels = (random.random((60, 3)) < 0.4).astype(int)
    labels[:, 2] = 0
    order = np.argsort(-scores, axis=1)
    predictions = Predictions(
        indices=np.arange(60),
        names=[str(i) for i in range(60)],
        labels=labels,
        top_classes=order,
        top_probabilities=np.take_along_axis(scores, order, axis=1),
        label_probabilities=scores[:, 0],
    )
    thresholds = np.array([0.3, 0.8, 0.99], dtype=np.float32)
    rows = class_table(["cat", "dog", "hen"], class_scores(predictions, 3, thresholds))
    for k, row in enumerate(rows[:2]):
        assert row["f1"] == pytest.approx(f1_score(labels[:, k], scores[:, k] > thresholds[k]))
        area = average_precision_score(labels[:, k], scores[:, k])
        assert row["average_precision"] == pytest.approx(area)
        assert row["images"] == labels[:, k].sum()
    assert rows[2]["average_precision"] is None and rows[2]["recall"] is None
    lines = list(class_lines(rows))
    assert len(lines) == 4 and lines[-1].split()[:3] == ["hen", "0", "-"]
