"""Expected calibration error, in bins of confidence (Guo et al., arXiv:1706.04599, eq. 3)."""

from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 15


@dataclass(frozen=True)
class BinSums:
    """Sums over the predictions of each bin, floating point, each (bins,)."""

    count: Tensor
    confidence: Tensor
    correct: Tensor

    def add(self, confidence: Tensor, correct: Tensor, group: Tensor) -> None:
        """Adds predictions in place: `confidence` and `correct` (n,), and their bins `group`."""
        self.count.index_add_(0, group, torch.ones_like(confidence))
        self.confidence.index_add_(0, group, confidence)
        self.correct.index_add_(0, group, correct.to(confidence.dtype))

    def error(self) -> Tensor:
        """Expected calibration error; 0 without predictions."""
        return (self.confidence - self.correct).abs().sum() / self.count.sum().clamp(min=1)


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each `confidence` (n,) in [0, 1]: equal width, open below; 0 is in the first."""
    return (torch.ceil(confidence * bins).long() - 1).clamp(0, bins - 1)
