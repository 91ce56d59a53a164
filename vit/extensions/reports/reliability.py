"""Reliability curves, and the calibration error of logits."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vit.training.metrics import BINS, add_to_bins, calibration_error, equal_width


def equal_count(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each `confidence` (n,): equally many predictions in each (arXiv:1508.05154)."""
    group = torch.empty(len(confidence), dtype=torch.int64)
    for index, part in enumerate(confidence.argsort(stable=True).tensor_split(bins)):
        group[part] = index
    return group


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of confidence, without empty bins. Arrays are (bins,)."""

    low: np.ndarray
    """Lower end of the bin (exclusive); `high` is inclusive. Bins of equal counts end at their
    largest confidence."""
    high: np.ndarray
    count: np.ndarray
    hits: np.ndarray
    """Number of correct predictions."""
    confidence: np.ndarray
    """Mean confidence."""
    error: float
    """Expected calibration error; NaN without predictions."""

    @property
    def accuracy(self) -> np.ndarray:
        """Accuracy of the bin."""
        return self.hits / self.count


def reliability(
    confidence: np.ndarray,
    correct: np.ndarray,
    *,
    bins: int = BINS,
    spacing: Literal["width", "count"] = "width",
) -> Reliability:
    """The reliability curve of `confidence` (n,) in [0, 1] and `correct` (n,), in float64."""
    sums = torch.zeros(3, bins, dtype=torch.float64)
    stated = torch.from_numpy(confidence.astype(np.float64))
    right = torch.from_numpy(np.asarray(correct))
    group = (equal_width if spacing == "width" else equal_count)(stated, bins)
    add_to_bins(sums, stated, right, group)
    held = sums[0] > 0
    count, total, hits = sums[:, held].numpy()
    if spacing == "width":
        place = held.nonzero()[:, 0].numpy()
        low, high = place / bins, (place + 1) / bins
    else:
        high = np.sort(confidence)[count.cumsum().astype(int) - 1]
        low = np.concatenate([[0.0], high[:-1]])
    return Reliability(
        low=low,
        high=high,
        count=count.astype(np.int64),
        hits=hits.astype(np.int64),
        confidence=total / count,
        error=float(calibration_error(sums)) if len(confidence) else float("nan"),
    )


def expected_calibration_error(
    logits: np.ndarray, labels: np.ndarray, *, temperature: float = 1.0
) -> float:
    """Calibration error of softmax(logits / temperature), (n, k), in bins of equal width."""
    probabilities = (torch.from_numpy(logits).double() / temperature).softmax(1)
    confidence, predicted = (part.numpy() for part in probabilities.max(1))
    return reliability(confidence, predicted == labels).error
