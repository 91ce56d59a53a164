"""Scores a model on a split: metrics, and a prediction for every image."""

from collections.abc import Mapping

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from vit.confidence import carried_over, set_scores
from vit.console import note
from vit.data.module import ImageData
from vit.data.sources import PathList, SplitName
from vit.label_tree import LabelTree
from vit.ranking import top_classes
from vit.runs.predictions import Predictions
from vit.runs.trainer import Module, callbacks_of
from vit.training.parts import from_all_processes

TOP = 5


class CollectPredictions(Callback):
    """Keeps the answers of a test for every image, from all processes, in the order of the set."""

    def __init__(self, cuts: Mapping[float, float], tree: LabelTree | None = None) -> None:
        """`cuts`: of `vit.confidence.set_scores`, by the coverage that they give."""
        self._cuts, self._tree = cuts, tree
        self._rows: list[dict[str, np.ndarray]] = []

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: tuple[Tensor, Tensor, Tensor],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        _, labels, indices = batch
        if len(indices) == 0:
            return
        assert isinstance(outputs, Tensor)
        # With several labels per image, average precision needs every class's score.
        top = TOP if labels.dim() == 1 else outputs.shape[-1]
        values, order = top_classes(outputs, top)
        row = {"indices": indices, "labels": labels, "top_classes": order}
        row["top_probabilities"] = values
        if labels.dim() == 1:
            row["label_probabilities"] = outputs.gather(1, labels[:, None])[:, 0]
            if self._cuts:
                scores = set_scores(outputs)
                inside = scores[..., None] <= scores.new_tensor(list(self._cuts.values()))
                row |= {"sizes": inside.sum(1), "covered": inside[range(len(labels)), labels]}
        else:
            row["label_probabilities"] = (outputs * labels).sum(-1) / labels.sum(-1).clamp(min=1)
            # They have an entry for every class of every image: the smallest types that do.
            row |= {"labels": labels.to(torch.uint8), "top_classes": order.to(torch.int32)}
        if self._tree is not None:
            levels, right = self._tree.scored(outputs, labels)
            row |= {"level_probabilities": levels, "level_hits": right}
        self._rows.append({name: value.cpu().numpy() for name, value in row.items()})

    def gathered(self, names: PathList) -> Predictions | None:
        """Predictions for every image once, in the order of the set, on all processes, or None."""
        rows = [row for share in from_all_processes(self._rows) for row in share]
        if not rows:
            return None
        order = np.argsort(np.concatenate([row["indices"] for row in rows]))
        columns = {name: np.concatenate([row[name] for row in rows])[order] for name in rows[0]}
        means = [columns.pop(name).mean(0).tolist() for name in ("covered", "sizes") if self._cuts]
        sets = [
            {"coverage": coverage, "holding": holding, "classes": classes}
            for coverage, holding, classes in zip(self._cuts, *means, strict=True)
        ]
        return Predictions(**columns, names=[names[i] for i in columns["indices"]], sets=sets)


def score(
    trainer: Trainer,
    model: Module,
    data: ImageData,
    split: SplitName,
    cuts: Mapping[float, float] | None = None,
) -> tuple[dict[str, float], Predictions | None]:
    """Metrics of one split, and predictions if it has labels; every process calls it.

    `cuts`: of CollectPredictions.
    """
    tree = LabelTree(data.classes) if data.labelled and data.tree else None
    collect = CollectPredictions(cuts or {}, tree)
    callbacks = callbacks_of(trainer)
    data.evaluation_split = split
    try:
        trainer.callbacks = [*callbacks, collect] if data.labelled else callbacks  # pyright: ignore
        trainer.test(model, datamodule=data, verbose=False)
    finally:
        trainer.callbacks = callbacks  # pyright: ignore
    prefix = f"{split}/"
    metrics = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith(prefix)}
    if not data.labelled:
        return finite(metrics), None
    predictions = collect.gathered(data.image_set(split).names)
    if predictions is None:
        note(f"none of the images of {split} could be read: the split is not scored")
        return {}, None
    for level, share in enumerate(predictions.accuracy_above(), start=1):
        metrics[f"{split}/acc1_level{level}"] = share
    return finite(metrics), predictions


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics that are finite numbers; notes the others."""
    missing = [name for name, value in metrics.items() if not np.isfinite(value)]
    if missing:
        note(f"{', '.join(missing)}: not a finite number, left out")
    return {name: value for name, value in metrics.items() if name not in missing}


def thresholds_of(model: Module) -> np.ndarray | None:
    """float32 `k`: thresholds of the probabilities in Predictions, if the model has any."""
    facts = model.extra()
    if "thresholds" not in facts:
        return None
    values = carried_over(facts["thresholds"], facts.get("temperature", 1.0))
    values = np.array(values, dtype=np.float32)
    return values.clip(max=np.nextafter(np.float32(1), np.float32(0)))  # 1 would be above none
