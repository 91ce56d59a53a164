"""Evaluation of a model: metrics and predictions of a split; its temperature and sets, by one pass
over held-out images.

Shapes: n images, k classes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from vit.confidence import (
    TRUST,
    carried_over,
    cut,
    energy,
    fit_temperature,
    set_scores,
    top_classes,
)
from vit.console import is_first_process, note, say
from vit.data.module import ImageData
from vit.data.sources import PathList, SplitName
from vit.label_tree import LabelTree
from vit.runs.predictions import Predictions
from vit.runs.records import Record
from vit.runs.trainer import Module, callbacks_of
from vit.training.counted_data import logits_of
from vit.training.parts import from_all_processes
from vit.weights.sealed import write_sealed
from vit.weights.weight_file import read_json

TOP = 5
MOST, MOST_NUMBERS = 10_000, 2**24
"""Images of val at most, and logits."""
COVERAGES = (0.8, 0.9, 0.95)
"""For which a report counts sets."""

Pair = tuple[Tensor, Tensor]
"""float32 logits `n k`, and labels: classes `n`, or zeros and ones `n k`."""


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
    if predictions.level_hits is not None:
        for level, hits in enumerate(predictions.level_hits.T[:-1], start=1):  # above the classes
            metrics[f"{split}/acc1_level{level}"] = float(hits.mean())
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


def measure(
    trainer: Trainer, model: Module, data: ImageData, checkpoint: Record, run: Path
) -> tuple[Record, dict[float, float]]:
    """Sets the model's temperature, and writes trust.safetensors beside the weights of the run.

    Returns content of summary.json, and the cut of `set_scores` for each of COVERAGES that there
    are images for; both empty without images that the weights were not trained on. `checkpoint`:
    the description of the weights. Every process must call it.
    """
    pairs, where = _held_out(trainer, model, data, checkpoint)
    if not pairs:
        note(
            "no images to measure on: probabilities get no temperature, --coverage and --unknown "
            "need one with val (--data.splits.val_fraction 0.1)"
        )
        return {}, {}
    logits, labels = (tensor.cpu() for tensor in pairs[0])
    temperature, images = fit_temperature(logits, labels), len(labels)
    model.test_metrics.temperature = None if temperature == 1 else temperature
    say(f"temperature {temperature:.3g}, fitted to {images:,} {where}")
    facts = {"temperature": temperature, "images": images, "measured_on": where}
    first, energies = logits.argmax(1), energy(logits, multilabel=data.multilabel)
    wrong = labels.gather(1, first[:, None])[:, 0] == 0 if data.multilabel else first != labels
    tensors, cuts = {"usual": energies.sort().values[None]}, {}
    if not data.multilabel:
        of_classes = set_scores((logits.double() / temperature).softmax(1))
        tensors["scores"] = scores = of_classes.gather(1, labels[:, None])[:, 0].sort().values
        cuts = {c: cut(scores, c) for c in COVERAGES if images + 1 >= 1 / (1 - c) - 1e-9}
    if is_first_process():
        weights = read_json(run / "model/config.json")["sha256"]
        about = {**facts, "unknown": "energy", "weights": weights}
        write_sealed(run / "model" / TRUST, tensors, json.dumps(about))
    unknown = {"images": images, "accuracies": accuracies(energies, wrong)}
    return {"confidence": facts, "unknown": unknown}, cuts


def _held_out(
    trainer: Trainer, model: Module, data: ImageData, checkpoint: Record
) -> tuple[list[Pair], str]:
    """Outputs of images that the weights were not trained on, one pair or none, and which images
    they are."""
    if data.splits.val is not None and trainer.limit_val_batches != 0:
        where = "validation images"
        if "score" in checkpoint or "val_losses" in checkpoint.get("by_size", {}):
            where += ", which also chose the weights"
        return _outputs_of_val(trainer, model, data), where
    where = f"training images, each by {model.held_out_by} that was fitted without it"
    return trainer.strategy.broadcast([*model.held_out]), where


def _outputs_of_val(trainer: Trainer, model: Module, data: ImageData) -> list[Pair]:
    """Outputs of at most MOST images, drawn by the seed: those of all processes, on each of them,
    on the CPU; none if no image could be read."""
    most = min(MOST, data.expected_images("val"), MOST_NUMBERS // len(data.classes))
    model.to(trainer.strategy.root_device)  # a fit that has ended leaves it on the CPU
    # Processes that divide a network compute batch by batch together.
    ends = not isinstance(trainer.strategy, ModelParallelStrategy)
    outputs = logits_of(trainer, model.model, "val", most, until_signal=ends)
    rows = [(logits.cpu(), labels.cpu()) for logits, labels, _ in outputs]
    rows = [row for share in from_all_processes(rows) for row in share]
    return [(torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows]))] if rows else []


def accuracies(scores: Tensor, wrong: Tensor) -> list[float]:
    """Accuracy of the 1 %, 2 %, ... 100 % of the images with the lowest `scores` (n,)."""
    ordered = wrong[scores.argsort(stable=True)].double()
    counts = (torch.arange(1, 101) * len(scores) / 100).ceil().long()
    shares: list[float] = (1 - ordered.cumsum(0)[counts - 1] / counts).tolist()  # pyright: ignore
    return shares
