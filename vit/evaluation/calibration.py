"""Calibration of logits, and temperature scaling (Guo et al., arXiv:1706.04599, section 4.2).

Shapes: n images, k classes.
"""

import numpy as np
import torch
import torch.nn.functional as F

from vit.calibration import reliability


def expected_calibration_error(
    logits: np.ndarray, labels: np.ndarray, *, temperature: float = 1.0
) -> float:
    """Calibration error of softmax(logits / temperature), (n, k), in bins of equal width."""
    probabilities = (torch.from_numpy(logits).double() / temperature).softmax(1)
    confidence, predicted = (part.numpy() for part in probabilities.max(1))
    return reliability(confidence, predicted == labels).error


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The T that minimises the cross-entropy of softmax(logits / T); above 1 if overconfident.

    By L-BFGS over log T in float64, from `logits` (n, k) and `labels` (n,) of held-out images.
    Meaningless if `temperature_without_minimum` returns a reason.
    """
    scores, truth = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_t], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(scores * torch.exp(-log_t), truth)
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return float(torch.exp(log_t.detach()))


def temperature_without_minimum(logits: np.ndarray, labels: np.ndarray) -> str | None:
    """The reason why no temperature minimises the cross-entropy; None if one does.

    Cross-entropy is convex in b = 1 / T. Its slope at b = 0 is the mean over the images of (mean
    logit - true logit), and for b to infinity that of (largest logit - true logit): it has a
    finite minimum only if the first is below 0 and the second above 0.
    """
    scores = torch.from_numpy(logits).double()
    true = scores[torch.arange(len(scores)), torch.from_numpy(labels)]
    if (scores.mean(1) - true).mean() >= 0:
        return "the logits do not predict the labels: a higher temperature is always better"
    if (scores.amax(1) - true).mean() <= 0:
        return "every image is correct: a lower temperature is always better"
    return None
