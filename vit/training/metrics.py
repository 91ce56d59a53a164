"""Scores of an evaluation set, the same with any number of processes.

Shapes: b batch, k classes, n images.
"""

from abc import ABC, abstractmethod
from math import nan

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection, SumMetric

from vit.confidence import top_classes
from vit.facts import Facts
from vit.logistic import total_loss
from vit.tables import resolve, rows
from vit.weights.report import LoadReport

BINS = 15
"""Number of bins of confidence, for the calibration error."""


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each `confidence` (n,) in [0, 1]: equal width, open below; 0 is in the first."""
    return (torch.ceil(confidence * bins).long() - 1).clamp(0, bins - 1)


def add_to_bins(sums: Tensor, confidence: Tensor, correct: Tensor, group: Tensor) -> None:
    """Adds predictions (n,) with their bins `group` to `sums` (3, bins), in place: their number,
    confidences and correct ones."""
    rows = torch.stack([torch.ones_like(confidence), confidence, correct.to(confidence.dtype)])
    sums.index_add_(1, group, rows)


def calibration_error(sums: Tensor) -> Tensor:
    """Expected calibration error (arXiv:1706.04599, eq. 3) of `sums` (3, bins); 0 if empty."""
    count, confidence, correct = sums
    return (confidence - correct).abs().sum() / count.sum().clamp(min=1)


class CalibrationError(Metric):
    """Expected calibration error; torchmetrics keeps every confidence."""

    full_state_update = False
    sums: Tensor
    """Sums of `add_to_bins`."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", default=torch.zeros(3, BINS), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """Adds `probabilities` b k of `labels` b."""
        top, predicted = probabilities.to(self.sums.dtype).max(-1)
        add_to_bins(self.sums, top, predicted == labels, equal_width(top, BINS))

    def compute(self) -> Tensor:
        return calibration_error(self.sums)


class Accuracies(Metric):
    """Shares of correct images, from four counts per class.

    `acc1`: the most probable class is the label; `acc5`: it is among the five most probable, of
    more than five classes. Of equal scores, which are common in bfloat16, the first classes count,
    as in argmax. `f1`: mean over the classes that have images or are predicted. `recall`: over
    those that have images (balanced accuracy). `constant_acc1`: share of the most frequent class.
    torchmetrics counts in a table of k x k, 3 GB for 20,000 classes.
    """

    full_state_update = False
    counts: Tensor
    """Per class: images that are correct, correct in the top 5, predicted, and true."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        zeros = torch.zeros(4, num_classes, dtype=torch.int64)
        self.add_state("counts", default=zeros, dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` b k, `labels` b."""
        predicted = probabilities.argmax(-1)
        ones = torch.ones_like(labels)
        _, classes = top_classes(probabilities, 5)
        self.counts[0].index_add_(0, labels, (predicted == labels).to(ones.dtype))
        self.counts[1].index_add_(0, labels, (classes == labels[:, None]).any(1).to(ones.dtype))
        self.counts[2].index_add_(0, predicted, ones)
        self.counts[3].index_add_(0, labels, ones)

    def compute(self) -> dict[str, Tensor]:
        hits, near, predicted, images = self.counts
        occurrences, total = predicted + images, images.sum().clamp(min=1)
        f1 = 2 * hits / occurrences.clamp(min=1)
        recall = hits / images.clamp(min=1)
        return {
            "acc1": hits.sum() / total,
            **({"acc5": near.sum() / total} if len(images) > 5 else {}),
            "f1": f1.sum() / (occurrences > 0).sum().clamp(min=1),
            "recall": recall.sum() / (images > 0).sum().clamp(min=1),
            "constant_acc1": images.max() / total,
        }


class SplitMetrics(torch.nn.Module, ABC):
    """Loss, number of images and scores of one split; a subclass adds scores."""

    IN_DOUBLE: tuple[type[Metric], ...] = (MeanMetric, SumMetric, CalibrationError)
    """Metrics whose sums are kept in float64 where the device has it."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = MeanMetric(nan_strategy=nan)  # else batches with NaN would be left out
        self.images = SumMetric(nan_strategy="disable")  # a test for NaN waits for the device

    def reset(self) -> None:
        """Starts an evaluation, on the device of the run."""
        for metric in self.modules():
            if isinstance(metric, Metric):
                metric.reset()
                if isinstance(metric, self.IN_DOUBLE) and metric.device.type != "mps":
                    metric.set_dtype(torch.float64)

    @abstractmethod
    def compute(self) -> dict[str, Tensor]:
        """The scores by their names, of all processes."""


class EvaluationMetrics(SplitMetrics):
    """Scores of a classifier with one label per image: accuracies, calibration error.

    The table `scores` names subclasses for other labels, under a field of `Facts`.
    """

    main = "acc1"
    """The score that chooses the best weights."""

    def __init__(self, num_classes: int, scores: dict[str, Metric] | None = None) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.temperature: float | None = None
        """Adds the scores of logits / temperature, and the likelihoods with and without it."""
        scores = scores or {"acc": Accuracies(num_classes), "ece": CalibrationError()}
        nll, nll_scaled = (MeanMetric(nan_strategy=nan) for _ in range(2))
        scaled: dict[str, Metric] = {"nll": nll, "nll_scaled": nll_scaled}
        if "ece" in scores:
            scaled["ece_scaled"] = CalibrationError()
        self.scores = MetricCollection(scores, compute_groups=False)  # pyright: ignore
        self.scaled = MetricCollection(scaled, compute_groups=False)  # pyright: ignore

    @staticmethod
    def activated(logits: Tensor) -> Tensor:
        """Probabilities `b k` of float32 logits."""
        return logits.softmax(-1)

    def update(self, probabilities: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Adds `probabilities` b k, `labels` b (or b k of 0 and 1), and `loss`, their mean."""
        self.loss.update(loss, weight=len(labels))
        self.images.update(len(labels))
        self.score(probabilities, labels.long())

    def score(self, probabilities: Tensor, labels: Tensor) -> None:
        """Updates `scores`."""
        self.scores.update(probabilities, labels)

    def add(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Adds float32 logits `b k`, and if there is a temperature the scaled ones, too."""
        self.update(self.activated(logits), labels, loss)
        if self.temperature is None:
            return
        scaled = logits / self.temperature
        for name, scores in (("nll", logits), ("nll_scaled", scaled)):
            mean = total_loss(scores, labels) / labels.numel()
            self.scaled[name].update(mean, weight=len(labels))
        if "ece_scaled" in self.scaled:
            self.scaled["ece_scaled"].update(self.activated(scaled), labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of float32 logits `b k`, divided by the temperature."""
        return self.activated(logits / (self.temperature or 1.0))

    def take(self, report: LoadReport | None) -> None:
        """Takes what was chosen for weights that were loaded; None for nothing."""
        self.temperature = None if report is None else report.temperature

    def chosen(self) -> dict[str, object]:
        """Facts that were chosen for the weights, such as their temperature."""
        return {} if self.temperature is None else {"temperature": self.temperature}

    def guards(self) -> list[Callback]:
        """Callbacks of every fit and evaluation."""
        return []

    def compute(self) -> dict[str, Tensor]:
        scaled = {} if self.temperature is None else self.scaled.compute()
        return {"loss": self.loss.compute(), **self.scores.compute(), **scaled}


def metrics_for(facts: Facts) -> type[EvaluationMetrics]:
    """The scores of such labels."""
    named = [row for field, row in rows("scores").items() if getattr(facts, field, False)]
    return resolve(named[0]) if named else EvaluationMetrics
