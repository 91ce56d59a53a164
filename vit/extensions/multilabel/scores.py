"""Scores of a classifier for several labels per image, and the choice of thresholds on val.

Shapes: b batch, k classes.
"""

from collections.abc import Iterable
from math import nan
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MultilabelExactMatch, MultilabelF1Score

from vit.console import say
from vit.extensions.multilabel.average_precision import MeanAveragePrecision, mean_of_present
from vit.training.counted_data import counting_data, logits_of
from vit.training.losses import Loss
from vit.training.metrics import EvaluationMetrics
from vit.weights.report import LoadReport


class MacroF1(MultilabelF1Score):
    """Mean F1 over the classes that have images or are predicted; 0 if there is none.

    torchmetrics counts the others as 0.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, average="none", zero_division=nan, validate_args=False)

    def compute(self) -> Tensor:
        return mean_of_present(super().compute())


class MultilabelMetrics(EvaluationMetrics):
    """Mean average precision, macro F1 and exact match."""

    main = "map"

    def __init__(self, num_classes: int) -> None:
        # Average precision keeps every score; thresholds would round it.
        scores: dict[str, Metric] = {
            "map": MeanAveragePrecision(),
            "f1": MacroF1(num_classes),
            "exact": MultilabelExactMatch(num_classes, validate_args=False),
        }
        super().__init__(num_classes, scores)
        self.thresholds: list[float] | None = None
        """`k` thresholds of F1 and exact match; None for 0.5."""

    @staticmethod
    def activated(logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def score(self, probabilities: Tensor, labels: Tensor) -> None:
        answers = probabilities
        if self.thresholds is not None:
            thresholds = torch.tensor(self.thresholds, device=probabilities.device)
            answers = (probabilities > thresholds).long()
        for name, metric in self.scores.items():
            metric.update(probabilities if name == "map" else answers, labels)

    def take(self, report: LoadReport | None) -> None:
        super().take(report)
        self.thresholds = None if report is None else report.thresholds

    def chosen(self) -> dict[str, object]:
        thresholds = {} if self.thresholds is None else {"thresholds": self.thresholds}
        return {**thresholds, **super().chosen()}

    def guards(self) -> list[Callback]:
        return [ChooseThresholds()]

    def best_thresholds(self) -> list[float] | None:
        """Thresholds by the last `compute`, the same on all processes; None before any."""
        values: Any = self.scores["map"].thresholds
        return None if values is None else values.tolist()

    def choose(self, outputs: Iterable[tuple[Tensor, Tensor]], loss: Loss) -> list[float] | None:
        """Thresholds of highest F1 on logits and labels `b k`; every process must call it."""
        self.reset()
        for logits, labels in outputs:
            self.add(logits, labels, loss(logits, labels))
        self.compute()
        return self.best_thresholds()

    def reset(self) -> None:
        super().reset()
        # So that a process that gets no image has scores of the right shape to share.
        nothing = torch.empty(0, self.num_classes, device=self.loss.device)
        self.scores["map"].update(nothing, nothing.long())


class ChooseThresholds(Callback):
    """Chooses the thresholds of a model's test metrics after each validation, or as the run ends
    if no validation has chosen any for its weights."""

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        thresholds = pl_module.val_metrics.best_thresholds()
        if thresholds is not None:
            pl_module.test_metrics.thresholds = thresholds

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        data = counting_data(trainer)
        if pl_module.test_metrics.thresholds is not None or data is None:
            return
        if data.splits.val is None or trainer.limit_val_batches == 0:
            outputs = pl_module.held_out
            if data.splits.val is not None or not trainer.strategy.broadcast(bool(outputs)):
                say("thresholds: 0.5 for every class, as no validation images could choose them")
                return
        else:
            outputs = [(x, labels) for x, labels, _ in logits_of(trainer, pl_module, "val")]
        chosen = pl_module.val_metrics.choose(outputs, pl_module.plain_loss)
        pl_module.test_metrics.thresholds = chosen

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        extra = (checkpoint.get("vit") or {}).get("extra", {})
        pl_module.test_metrics.thresholds = extra.get("thresholds")
