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
    There is none, and the result is a bound of the search, if every image is correct.
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
