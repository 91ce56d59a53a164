"""Bins of confidence and their error: against torchmetrics, and by hand."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from vit.extensions.reports.reliability import reliability


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_error_is_torchmetrics(bins: int) -> None:
    generator = torch.Generator().manual_seed(1)
    probabilities = torch.randn(500, 6, generator=generator).mul(2).softmax(1)
    labels = torch.randint(0, 6, (500,), generator=generator)
    expected = multiclass_calibration_error(probabilities, labels, num_classes=6, n_bins=bins)
    confidence, predicted = probabilities.max(1)
    report = reliability(confidence.numpy(), (predicted == labels).numpy(), bins=bins)
    assert report.error == pytest.approx(float(expected), abs=1e-6)
    assert report.count.sum() == 500
    assert report.hits.sum() == int((predicted == labels).sum())


def test_bins_are_closed_above() -> None:
    confidence = np.array([0.0, 0.2, 0.5, 0.51, 0.8, 1.0])
    correct = np.array([False, True, False, True, True, False])
    report = reliability(confidence, correct, bins=2)
    assert report.count.tolist() == [3, 3]
    assert (report.low.tolist(), report.high.tolist()) == ([0, 0.5], [0.5, 1])
    assert report.confidence == pytest.approx([0.7 / 3, 2.31 / 3])
    assert report.accuracy == pytest.approx([1 / 3, 2 / 3])
    assert report.error == pytest.approx((3 * (1 / 3 - 0.7 / 3) + 3 * (2.31 / 3 - 2 / 3)) / 6)


def test_bins_of_equal_count_by_hand() -> None:
    confidence = np.array([0.9, 0.3, 0.8, 0.85, 0.95])
    correct = np.array([True, False, False, True, True])
    report = reliability(confidence, correct, bins=2, spacing="count")
    assert report.count.tolist() == [3, 2]  # 0.3 0.8 0.85 and 0.9 0.95
    assert (report.low.tolist(), report.high.tolist()) == ([0.0, 0.85], [0.85, 0.95])
    assert report.confidence == pytest.approx([1.95 / 3, 0.925])
    assert report.accuracy == pytest.approx([1 / 3, 1])
    assert report.error == pytest.approx((3 * (1.95 - 1) / 3 + 2 * 0.075) / 5)


def test_empty_bins_are_left_out_and_nothing_has_no_error() -> None:
    report = reliability(np.empty(0), np.empty(0, dtype=bool))
    assert np.isnan(report.error) and len(report.count) == 0
    report = reliability(np.array([0.99, 0.98]), np.array([True, True]))
    assert report.count.tolist() == [2] and report.error == pytest.approx(0.015)
