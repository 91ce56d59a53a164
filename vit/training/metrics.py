"""What is measured on an evaluation set. Every state is a sum over images, so any number of
processes gives the same figures. Shapes: b batch, k classes."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MultilabelExactMatch,
    MultilabelF1Score,
)
from torchmetrics.utilities import dim_zero_cat

from vit.calibration import BINS, BinSums, equal_width
from vit.ranking import top_classes

# Scores that are sorted at a time for average precision: 2**22 take some 200 MB.
_SORTED_TOGETHER = 2**22


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


class MacroF1(Metric):
    """Mean F1 over the classes that have images or are predicted, from three counts per class.

    torchmetrics counts them in a table of k x k, 3 GB for 20,000 classes.
    """

    full_state_update = False
    hits: Tensor
    predicted: Tensor
    images: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        for name in ("hits", "predicted", "images"):
            zeros = torch.zeros(num_classes, dtype=torch.int64)
            self.add_state(name, default=zeros, dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` b k, `labels` b."""
        said = probabilities.argmax(-1)
        ones = torch.ones_like(labels)
        self.hits.index_add_(0, labels, (said == labels).to(ones.dtype))
        self.predicted.index_add_(0, said, ones)
        self.images.index_add_(0, labels, ones)

    def compute(self) -> Tensor:
        occurrences = self.predicted + self.images
        f1 = 2 * self.hits / occurrences.clamp(min=1)
        return f1.sum() / (occurrences > 0).sum().clamp(min=1)


class TopAccuracy(Metric):
    """Share of images whose label is among the `top` most probable classes."""

    full_state_update = False
    hits: Tensor
    images: Tensor

    def __init__(self, top: int) -> None:
        super().__init__()
        self.top = top
        for name in ("hits", "images"):
            self.add_state(name, default=torch.tensor(0), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` b k, `labels` b."""
        _, classes = top_classes(probabilities, self.top)
        self.hits += (classes == labels[:, None]).sum()
        self.images += len(labels)

    def compute(self) -> Tensor:
        return self.hits / self.images.clamp(min=1)


class MeanAveragePrecision(Metric):
    """Mean over the classes of average precision, from every score.

    A class without images counts as 0, as in scikit-learn and torchmetrics. torchmetrics sorts
    class by class and keeps labels of eight bytes.
    """

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        for name in ("preds", "target"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` and `labels` b k."""
        self.preds.append(probabilities)
        self.target.append(labels.to(torch.uint8))

    def compute(self) -> Tensor:
        scores, labels = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        n, k = scores.shape
        together = max(1, _SORTED_TOGETHER // max(n, 1))
        parts = [
            average_precision(scores[:, i : i + together].T, labels[:, i : i + together].T)
            for i in range(0, k, together)
        ]
        return torch.cat(parts).mean().to(torch.float32)


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Area under the precision-recall steps `k` of `scores` and `labels` `k n`; 0 without labels.

    Equal scores enter the ranking together, so the order of the images does not matter.
    """
    n = scores.shape[1]
    if not n:
        return scores.new_zeros(len(scores))
    ranked, order = scores.sort(dim=1, descending=True)
    relevant = labels.gather(1, order)
    # Of each place, the last one that has the same score: precision is that of all of them.
    last = torch.arange(n, device=scores.device).repeat(len(scores), 1)
    last[:, :-1].masked_fill_(ranked[:, :-1] == ranked[:, 1:], n)
    last = last.flip(1).cummin(1).values.flip(1)
    exact = torch.float32 if scores.device.type == "mps" else torch.float64
    hits = relevant.cumsum(1, dtype=torch.int64).to(exact)
    precision = (hits / torch.arange(1, n + 1, device=scores.device)).gather(1, last)
    return (precision * relevant).sum(1) / hits[:, -1].clamp(min=1)


class EvaluationMetrics(torch.nn.Module):
    """Loss, image count and scores of one split.

    One label per image: top-1, top-5 (of more than 5 classes), macro F1, calibration error. Several
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
                "map": MeanAveragePrecision(),
                "f1": MultilabelF1Score(num_classes, **kwargs),
                "exact": MultilabelExactMatch(num_classes, **kwargs),
            }
        else:
            scores = {
                "acc1": MulticlassAccuracy(num_classes, average="micro", **kwargs),
                "f1": MacroF1(num_classes),
                "ece": CalibrationError(),
            }
            if num_classes > 5:
                scores["acc5"] = TopAccuracy(5)
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
