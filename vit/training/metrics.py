"""What is measured on an evaluation set. Every state is a sum over images, so any number of
processes gives the same figures. Shapes: b batch, k classes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MultilabelAveragePrecision,
    MultilabelExactMatch,
    MultilabelF1Score,
)

from vit.calibration import BINS, BinSums, equal_width


class CalibrationError(Metric):
    """Expected calibration error over 15 equal bins of confidence (arXiv:1706.04599, eq. 3).

    Sums a bin instead of keeping every confidence, so that its size is fixed and processes add up.
    """

    full_state_update = False
    count: Tensor
    confidence: Tensor
    correct: Tensor

    def __init__(self, num_bins: int = BINS) -> None:
        super().__init__()
        for name in ("count", "confidence", "correct"):
            self.add_state(name, default=torch.zeros(num_bins), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` b k, `labels` b."""
        top, predicted = probabilities.to(self.count.dtype).max(-1)
        self._sums.add(top, predicted == labels, equal_width(top, len(self.count)))

    def compute(self) -> Tensor:
        return self._sums.error()

    @property
    def _sums(self) -> BinSums:
        return BinSums(self.count, self.confidence, self.correct)


class ImageCount(Metric):
    """How many images were evaluated."""

    full_state_update = False
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("count", default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        self.count += len(labels)

    def compute(self) -> Tensor:
        return self.count


class EvaluationMetrics(torch.nn.Module):
    """Loss, image count and scores of one split.

    One label an image: top-1, top-5 (of more than 5 classes), macro F1, calibration error. Several
    labels: mean average precision, macro F1, exact match.
    """

    def __init__(self, num_classes: int, *, multilabel: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.loss = MeanMetric()
        self.images = ImageCount()
        kwargs: dict[str, Any] = {"validate_args": False}
        if multilabel:
            # Average precision keeps every score; thresholds would round it.
            scores: dict[str, Any] = {
                "map": MultilabelAveragePrecision(num_classes, **kwargs),
                "f1": MultilabelF1Score(num_classes, **kwargs),
                "exact": MultilabelExactMatch(num_classes, **kwargs),
            }
        else:
            scores = {
                "acc1": MulticlassAccuracy(num_classes, average="micro", **kwargs),
                "f1": MulticlassF1Score(num_classes, average="macro", **kwargs),
                "ece": CalibrationError(),
            }
            if num_classes > 5:
                scores["acc5"] = MulticlassAccuracy(num_classes, top_k=5, average="micro", **kwargs)
        self.scores = MetricCollection(scores, compute_groups=False)

    def update(self, probabilities: Tensor, labels: Tensor, loss: Tensor) -> None:
        """`probabilities` b k, `labels` b (or b k of 0 and 1), `loss` their mean."""
        if len(labels) == 0:
            return
        self.loss.update(loss, weight=len(labels))
        self.images.update(probabilities, labels)
        labels = labels.long()
        self.scores.update(probabilities, labels)

    def compute(self) -> dict[str, Tensor]:
        """Scalars by name: loss and the scores."""
        return {"loss": self.loss.compute(), **self.scores.compute()}

    def reset(self) -> None:
        """Forgets what was seen; to be called before each evaluation, on the device of the run."""
        for metric in (self.loss, self.images, self.scores):
            metric.reset()
        device = self.loss.device
        if device.type != "mps":  # which has no float64
            for metric in (self.loss, *self.scores.values()):
                if isinstance(metric, MeanMetric | CalibrationError):
                    metric.set_dtype(torch.float64)
        if "map" in self.scores:
            # So that a process that gets no image has scores of the right shape to share.
            nothing = torch.empty(0, self.num_classes, device=device)
            self.scores["map"].update(nothing, nothing.long())
