"""Scores a model on a split: metrics, and a prediction for every image."""

from typing import Any

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.console import note
from vit.ranking import top_classes
from vit.reports.predictions import Predictions

TOP = 5


class CollectPredictions(Callback):
    """Keeps the answers of a test for every image, from all processes, in the order of the set."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        _, labels, indices = batch
        if len(indices) == 0:
            return
        # With several labels per image, average precision needs every class's score.
        top = TOP if labels.dim() == 1 else outputs.shape[-1]
        values, order = top_classes(outputs, top)
        row = {"indices": indices, "labels": labels, "classes": order, "probabilities": values}
        if labels.dim() == 1:
            row["of_label"] = outputs.gather(1, labels[:, None])[:, 0]
        else:
            row["of_label"] = (outputs * labels).sum(-1) / labels.sum(-1).clamp(min=1)
            # They have an entry for every class of every image: the smallest types that do.
            row |= {"labels": labels.to(torch.uint8), "classes": order.to(torch.int32)}
        self._rows.append({name: value.cpu().numpy() for name, value in row.items()})

    def gathered(self, names: list[str]) -> Predictions | None:
        """Every image once, in the order of the set, on all processes; None without any."""
        rows = self._rows
        if torch.distributed.is_initialized():
            shares: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(shares, rows)
            rows = [row for share in shares for row in share]
        if not rows:
            return None
        order = np.argsort(np.concatenate([row["indices"] for row in rows]))
        columns = {name: np.concatenate([row[name] for row in rows])[order] for name in rows[0]}
        return Predictions(
            indices=columns["indices"],
            names=[names[i] for i in columns["indices"]],
            labels=columns["labels"],
            top_classes=columns["classes"],
            top_probabilities=columns["probabilities"],
            label_probabilities=columns["of_label"],
        )


def score(trainer: Trainer, model: Any, data: Any, split: str) -> tuple[dict[str, float], Any]:
    """Metrics of one split, and predictions if it has labels; every process calls it."""
    collect = CollectPredictions()
    if data.labelled:
        trainer.callbacks.append(collect)  # pyright: ignore[reportAttributeAccessIssue]
    data.evaluation_split = model.evaluation_split = split
    try:
        trainer.test(model, datamodule=data, verbose=False)
    finally:
        if data.labelled:
            trainer.callbacks.remove(collect)  # pyright: ignore[reportAttributeAccessIssue]
    prefix = f"{split}/"
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(prefix)}
    if not data.labelled:
        return finite(metrics), None
    predictions = collect.gathered(data.image_set(split).names)
    if predictions is None:
        note(f"none of the images of {split} could be read: the split is not scored")
        return {}, None
    return finite(metrics), predictions


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that are finite numbers; notes the others."""
    missing = [name for name, value in metrics.items() if not np.isfinite(value)]
    if missing:
        note(f"{', '.join(missing)}: not a finite number, left out")
    return {name: value for name, value in metrics.items() if name not in missing}


def thresholds_of(model: Any) -> np.ndarray | None:
    """float32 `k`: per-class decision thresholds, if the model has any."""
    values = getattr(model, "thresholds", None)
    return None if values is None else np.array(values, dtype=np.float32)
