"""Temperatures against SciPy; errors: tests/test_calibration.py."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from vit.evaluation.calibration import (
    fit_temperature,
)


def answers(num: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 6), and labels drawn from softmax(logits / sharpness)."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(num, 6, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return (sharpness * logits).numpy(), labels.numpy()


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
