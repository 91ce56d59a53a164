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
    """That of softmax(logits / temperature), in equally wide bins.

    `logits` (n, k), `labels` (n,).
    """
    probabilities = (torch.from_numpy(logits).double() / temperature).softmax(1)
    confidence, predicted = (part.numpy() for part in probabilities.max(1))
    return reliability(confidence, predicted == labels).error


def fit_temperature(logits: np.ndarray, labels: np.ndarray) -> float:
    """The T for which softmax(logits / T) has the least cross-entropy; above 1 if overconfident.

    From images that the model was not trained on: `logits` (n, k), `labels` (n,). One number
    changes no prediction. Found by L-BFGS over log T, in float64.
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
