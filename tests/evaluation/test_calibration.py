"""Calibration against torchmetrics, this package's own metric, SciPy, and by hand."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torchmetrics.functional.classification import multiclass_calibration_error

from vit.evaluation.calibration import (
    expected_calibration_error,
    fit_temperature,
)
from vit.training.metrics import CalibrationError


def answers(num: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 6), and labels drawn from softmax(logits / sharpness)."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num, 6, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (sharpness * logits).numpy(), labels.numpy()


@pytest.mark.parametrize("sharpness", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_error_is_torchmetrics_and_that_of_training(sharpness: float, temperature: float) -> None:
    logits, labels = answers(500, sharpness)
    probabilities = (torch.from_numpy(logits).double() / temperature).softmax(1)
    truth = torch.from_numpy(labels)
    found = expected_calibration_error(logits, labels, temperature=temperature)
    theirs = multiclass_calibration_error(probabilities, truth, num_classes=6, n_bins=15)
    assert found == pytest.approx(float(theirs), abs=1e-6)
    metric = CalibrationError().set_dtype(torch.float64)
    metric.update(probabilities, truth)
    assert found == pytest.approx(float(metric.compute()), abs=1e-9)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
def test_temperature_is_the_minimum_that_scipy_finds(sharpness: float) -> None:
    logits, labels = answers(2000, sharpness)

    def loss(log_t: float) -> float:
        scores = torch.from_numpy(logits).double() / np.exp(log_t)
        return float(torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels)))

    best = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(np.exp(best.x), rel=1e-4)
    assert found == pytest.approx(sharpness, rel=0.1)  # the labels were drawn with it


def test_a_best_temperature_is_a_minimum_of_the_cross_entropy():
    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = rng.normal(size=(30, 4)) * rng.uniform(0.1, 9)
        labels = rng.integers(4, size=30)
        grid = np.exp(np.linspace(-12, 12, 2001))
        exact = torch.from_numpy(logits)[None] / torch.from_numpy(grid)[:, None, None]
        losses = -exact.log_softmax(-1)[:, np.arange(30), labels].mean(1).numpy()
        at = losses.argmin()
        if losses[at] < losses[[0, -1]].min() - 1e-6:  # else no temperature is the best
            assert fit_temperature(logits, labels) == pytest.approx(grid[at], rel=0.03)
