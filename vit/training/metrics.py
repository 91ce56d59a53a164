"""Scores of an evaluation set, the same with any number of processes.

Shapes: b batch, k classes, n images.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric, MetricCollection, SumMetric
from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score
from torchmetrics.utilities import dim_zero_cat

from vit.logistic import total_loss
from vit.ranking import top_classes
from vit.training.losses import Loss
from vit.weights.report import LoadReport

EVEN = 0.5
"""Threshold of a class for which none was chosen: a probability above it is a yes."""

BINS = 15
"""Of confidence, for the calibration error."""

# Scores that are sorted at a time for average precision: 2**22 take some 200 MB.
_SORTED_TOGETHER = 2**22


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


class CalibrationError(Metric):
    """Expected calibration error (arXiv:1706.04599, eq. 3); torchmetrics keeps every confidence."""

    full_state_update = False
    sums: Tensor
    """Rows as in BinSums."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", default=torch.zeros(3, BINS), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` b k, `labels` b."""
        top, predicted = probabilities.to(self.sums.dtype).max(-1)
        BinSums(*self.sums).add(top, predicted == labels, equal_width(top, BINS))

    def compute(self) -> Tensor:
        return BinSums(*self.sums).error()


class Accuracies(Metric):
    """Shares of images that are right, from four counts per class.

    `acc1`: right as a whole, and `acc5` with the label among the five most probable, of more than
    five classes. Of equal scores, which are common in bfloat16, the first classes count, as in
    argmax. `f1`: mean over the classes that have images or are predicted. `recall`: over those that
    have images (balanced accuracy). `constant_acc1`: the share of the most frequent class.
    torchmetrics counts in a table of k x k, 3 GB for 20,000 classes.
    """

    full_state_update = False
    counts: Tensor
    """Of each class: images that are right, nearly right, predicted to be of it, and of it."""

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


class MeanAveragePrecision(Metric):
    """Mean average precision over the classes, from every score; 0 for a class without images.

    torchmetrics sorts class by class and keeps labels of eight bytes. `choose`: `compute` also
    chooses thresholds.
    """

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self, *, choose: bool = False) -> None:
        super().__init__()
        self.choose = choose
        self.thresholds: Tensor | None = None
        """float32 `k` by `best_thresholds`, of the last `compute`."""
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
            (scores[:, i : i + together].T, labels[:, i : i + together].T)
            for i in range(0, k, together)
        ]
        if self.choose:
            self.thresholds = torch.cat([best_thresholds(*part) for part in parts])
        return torch.cat([average_precision(*part) for part in parts]).mean().to(torch.float32)


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Area under the precision-recall steps `k` of `scores` and `labels` `k n`; 0 without labels.

    Equal scores enter the ranking together, so the order of the images does not matter.
    """
    n = scores.shape[1]
    if not n:
        return scores.new_zeros(len(scores))
    _, relevant, last = _ranking(scores, labels)
    hits = _hits(relevant)
    precision = (hits / torch.arange(1, n + 1, device=scores.device)).gather(1, last)
    return (precision * relevant).sum(1) / hits[:, -1].clamp(min=1)


def best_thresholds(scores: Tensor, labels: Tensor) -> Tensor:
    """Thresholds of highest F1, float32 `k`, from scores and labels `k n`; 0.5 without labels.

    A threshold is the middle between the lowest score above it and the next; of equal F1 the
    highest is taken.
    """
    k, n = scores.shape
    even = torch.full((k,), EVEN, device=scores.device)
    if not n:
        return even
    scores = scores.to(torch.float32)
    ranked, relevant, last = _ranking(scores, labels)
    hits = _hits(relevant)
    f1 = 2 * hits / (torch.arange(1, n + 1, device=scores.device) + hits[:, -1:])
    # A cut falls between different scores, and a score of 0 is above no threshold.
    f1 = f1.masked_fill((last != torch.arange(n, device=scores.device)) | (ranked <= 0), 0)
    highest, cut = f1.max(1, keepdim=True)
    below = torch.cat([ranked[:, 1:], ranked.new_zeros(k, 1)], 1)
    lowest, following = (values.gather(1, cut)[:, 0] for values in (ranked, below))
    middle = (lowest + following) / 2
    middle = torch.where(middle < lowest, middle, following)  # two neighbours in float32
    return torch.where(highest[:, 0] > 0, middle, even)


def _ranking(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores `k n`, highest first; their labels; and of each place the last with the same score."""
    n = scores.shape[1]
    ranked, order = scores.sort(dim=1, descending=True)
    last = torch.arange(n, device=scores.device).repeat(len(scores), 1)
    last[:, :-1].masked_fill_(ranked[:, :-1] == ranked[:, 1:], n)
    return ranked, labels.gather(1, order), last.flip(1).cummin(1).values.flip(1)


def _hits(relevant: Tensor) -> Tensor:
    """Images that have the class up to each place, `k n`; floats for exact division."""
    exact = torch.float32 if relevant.device.type == "mps" else torch.float64
    return relevant.cumsum(1, dtype=torch.int64).to(exact)


class SplitMetrics(torch.nn.Module, ABC):
    """Loss, number of images and scores of one split; a subclass adds scores."""

    IN_DOUBLE: tuple[type[Metric], ...] = (MeanMetric, SumMetric, CalibrationError)
    """Metrics whose sums are kept in float64 where the device has it."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = MeanMetric()
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
    """Scores of a classifier.

    One label per image: Accuracies, calibration error. Several labels: mean average precision,
    macro F1, exact match; `choose_thresholds` by `compute`.
    """

    def __init__(
        self, num_classes: int, *, multilabel: bool, choose_thresholds: bool = False
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.multilabel = multilabel
        self.thresholds: list[float] | None = None
        """`k` thresholds of F1 and exact match with several labels per image; None for 0.5."""
        self.temperature: float | None = None
        """Adds the scores of logits / temperature, and the likelihoods with and without it."""
        kwargs: dict[str, Any] = {"validate_args": False}
        if multilabel:
            # Average precision keeps every score; thresholds would round it.
            scores: dict[str, Any] = {
                "map": MeanAveragePrecision(choose=choose_thresholds),
                "f1": MultilabelF1Score(num_classes, **kwargs),
                "exact": MultilabelExactMatch(num_classes, **kwargs),
            }
        else:
            scores = {"acc": Accuracies(num_classes), "ece": CalibrationError()}
        self.scores = MetricCollection(scores, compute_groups=False)
        scaled: dict[str, Any] = {"nll": MeanMetric(), "nll_scaled": MeanMetric()}
        if not multilabel:
            scaled["ece_scaled"] = CalibrationError()
        self.scaled = MetricCollection(scaled, compute_groups=False)

    def update(self, probabilities: Tensor, labels: Tensor, loss: Tensor) -> None:
        """`probabilities` b k, `labels` b (or b k of 0 and 1), `loss` their mean."""
        self.loss.update(loss, weight=len(labels))
        self.images.update(len(labels))
        labels = labels.long()
        if self.thresholds is None:
            self.scores.update(probabilities, labels)
            return
        thresholds = torch.tensor(self.thresholds, device=probabilities.device)
        answers = (probabilities > thresholds).long()
        for name, metric in self.scores.items():
            metric.update(probabilities if name == "map" else answers, labels)

    def add(self, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """`update` by float32 logits `b k`; with a `temperature` the scores of scaled ones, too."""
        self.update(self._answers(logits), labels, loss)
        if self.temperature is None:
            return
        scaled = logits / self.temperature
        for name, scores in (("nll", logits), ("nll_scaled", scaled)):
            mean = total_loss(scores, labels) / labels.numel()
            self.scaled[name].update(mean, weight=len(labels))
        if not self.multilabel:
            self.scaled["ece_scaled"].update(scaled.softmax(1), labels)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Those of float32 logits `b k`, divided by the temperature."""
        return self._answers(logits / (self.temperature or 1.0))

    def _answers(self, logits: Tensor) -> Tensor:
        return logits.sigmoid() if self.multilabel else logits.softmax(-1)

    def take(self, report: LoadReport | None) -> None:
        """Takes what was chosen for weights that were loaded; None for nothing."""
        self.thresholds = report.thresholds if report is not None and self.multilabel else None
        self.temperature = None if report is None else report.temperature

    def chosen(self) -> dict[str, Any]:
        """The thresholds and the temperature in force."""
        facts = {"thresholds": self.thresholds, "temperature": self.temperature}
        return {name: value for name, value in facts.items() if value is not None}

    def choose(self, outputs: Iterable[tuple[Tensor, Tensor]], loss: Loss) -> list[float] | None:
        """Thresholds of highest F1 on logits and labels `b k`; every process must call it."""
        self.reset()
        for logits, labels in outputs:
            self.add(logits, labels, loss(logits, labels))
        self.compute()
        return self.chosen_thresholds()

    def chosen_thresholds(self) -> list[float] | None:
        """Those of the last `compute`, the same on all processes; None if not chosen."""
        chosen = self.scores["map"].thresholds if self.multilabel else None
        return None if chosen is None else [float(value) for value in chosen]  # pyright: ignore

    def compute(self) -> dict[str, Tensor]:
        scaled = {} if self.temperature is None else self.scaled.compute()
        return {"loss": self.loss.compute(), **self.scores.compute(), **scaled}

    def reset(self) -> None:
        super().reset()
        if "map" in self.scores:
            # So that a process that gets no image has scores of the right shape to share.
            nothing = torch.empty(0, self.num_classes, device=self.loss.device)
            self.scores["map"].update(nothing, nothing.long())
