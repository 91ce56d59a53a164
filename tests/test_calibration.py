"""Bins of confidence and their error: against NumPy, torchmetrics, and by hand."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from vit.calibration import reliability
from vit.evaluation.calibration import expected_calibration_error
from vit.training.metrics import CalibrationError


def by_numpy(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    """arXiv:1706.04599, eq. 3: bin m holds the confidences in ((m - 1) / M, m / M]."""
    error = 0.0
    for m in range(1, bins + 1):
        held = ((m - 1) / bins < confidence) & (confidence <= m / bins)
        if m == 1:
            held |= confidence == 0
        if held.any():
            gap = abs(correct[held].mean() - confidence[held].mean())
            error += held.sum() / len(confidence) * gap
    return error


@pytest.mark.parametrize("number", [1, 7, 1000])
@pytest.mark.parametrize("bins", [1, 10, 15])
def test_error_is_that_of_the_formula(number: int, bins: int) -> None:
    random = np.random.default_rng(number)
    confidence = random.random(number) ** 0.3
    confidence[0] = 0.0
    correct = random.random(number) < confidence
    expected = by_numpy(confidence, correct, bins)
    assert reliability(confidence, correct, bins=bins).error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_training_evaluation_and_reports_agree_with_the_formula(precision: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(500, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(6, (500,), generator=generator)
    probabilities = logits.softmax(1)
    confidence, predicted = probabilities.max(1)
    expected = by_numpy(confidence.numpy(), (predicted == labels).numpy(), 15)
    metric = CalibrationError().set_dtype(precision)
    for part, right in zip(probabilities.split(64), labels.split(64), strict=True):
        metric.update(part, right)
    assert float(metric.compute()) == pytest.approx(expected, abs=1e-6)
    found = expected_calibration_error(logits.numpy(), labels.numpy())
    assert found == pytest.approx(expected, abs=1e-12)
    report = reliability(confidence.numpy(), (predicted == labels).numpy())
    assert report.error == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("bins", [10, 15])
def test_error_is_torchmetrics(bins: int) -> None:
    generator = torch.Generator().manual_seed(1)
    probabilities = torch.randn(500, 6, generator=generator).mul(2).softmax(1)
    labels = torch.randint(0, 6, (500,), generator=generator)
    expected = multiclass_calibration_error(probabilities, labels, num_classes=6, n_bins=bins)
    confidence, predicted = probabilities.max(1)
    found = reliability(confidence.numpy(), (predicted == labels).numpy(), bins=bins)
    assert found.error == pytest.approx(float(expected), abs=1e-6)
    assert found.count.sum() == 500
    assert found.hits.sum() == int((predicted == labels).sum())


def test_bins_are_closed_above() -> None:
    confidence = np.array([0.0, 0.2, 0.5, 0.51, 0.8, 1.0])
    correct = np.array([False, True, False, True, True, False])
    found = reliability(confidence, correct, bins=2)
    assert found.count.tolist() == [3, 3]
    assert (found.low.tolist(), found.high.tolist()) == ([0, 0.5], [0.5, 1])
    assert found.confidence == pytest.approx([0.7 / 3, 2.31 / 3])
    assert found.accuracy == pytest.approx([1 / 3, 2 / 3])
    assert found.error == pytest.approx((3 * (1 / 3 - 0.7 / 3) + 3 * (2.31 / 3 - 2 / 3)) / 6)


def test_bins_of_equal_count_by_hand() -> None:
    confidence = np.array([0.9, 0.3, 0.8, 0.85, 0.95])
    correct = np.array([True, False, False, True, True])
    found = reliability(confidence, correct, bins=2, spacing="count")
    assert found.count.tolist() == [3, 2]  # 0.3 0.8 0.85 and 0.9 0.95
    assert (found.low.tolist(), found.high.tolist()) == ([0.0, 0.85], [0.85, 0.95])
    assert found.confidence == pytest.approx([1.95 / 3, 0.925])
    assert found.accuracy == pytest.approx([1 / 3, 1])
    assert found.error == pytest.approx((3 * (1.95 - 1) / 3 + 2 * 0.075) / 5)


def test_empty_bins_are_left_out_and_nothing_has_no_error() -> None:
    found = reliability(np.empty(0), np.empty(0, dtype=bool))
    assert np.isnan(found.error) and len(found.count) == 0
    found = reliability(np.array([0.99, 0.98]), np.array([True, True]))
    assert found.count.tolist() == [2] and found.error == pytest.approx(0.015)


def test_predictions_in_blocks_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    confidence, correct = rng.random(1000), rng.random(1000) < 0.5
    whole = reliability(confidence, correct)
    monkeypatch.setattr("vit.calibration._BLOCK", 77)
    parts = reliability(confidence, correct)
    assert parts.error == pytest.approx(whole.error)
    np.testing.assert_array_equal(parts.count, whole.count)
    np.testing.assert_array_equal(parts.hits, whole.hits)
    np.testing.assert_allclose(parts.confidence, whole.confidence)
