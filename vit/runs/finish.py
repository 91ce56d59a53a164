"""The end of a run: the best weights measured and scored once; model/ and summary.json written."""

import math
import os
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer

from vit.console import is_first_process
from vit.data.module import ImageData
from vit.hardware import hardware, peak_memory, versions
from vit.runs.closing import headline
from vit.runs.directory import RunDirectory
from vit.runs.measuring import measure
from vit.runs.options import Module, Options
from vit.runs.predictions import FILE, Predictions, write_csv
from vit.runs.records import SUMMARY
from vit.runs.scoring import finite, score, thresholds_of
from vit.training.budget import batches_per_epoch
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.lightning_internals import log_at_last_step
from vit.training.saving import BestCheckpoint
from vit.weights.archives import read_checkpoint
from vit.weights.native import save_native
from vit.weights.sealed import is_sharded
from vit.writing import atomic, write_json


def clocks() -> tuple[float, float]:
    """Seconds, and CPU seconds of this process and its ended workers."""
    return time.monotonic(), sum(os.times()[:4])


def finish(
    run: RunDirectory,
    options: Options,
    trainer: Trainer,
    model: Module,
    data: ImageData,
    began: tuple[float, float],
) -> str:
    """Scores the best weights once and writes model/, predictions and summary.json; every process
    calls it.

    Returns the main score; "" in other processes than the first. `began`: `clocks()` before
    the training. model/ is written before the scoring too, so that an unreadable image loses
    nothing.
    """
    log_at_last_step(trainer)
    facts = _facts(run, options, trainer, model, data, began)
    best = load_best(trainer, model)
    metrics = finite(best.pop("metrics"))  # of these weights, not of the last ones
    model.merge()  # what is scored is what is written
    _write_model(run, options, model, data, metrics, best)
    split, predictions = _scored_split(options, data), None
    figures, cuts, scores = {}, {}, {}
    if data.labelled:
        figures, cuts = measure(trainer, model, data, best, run.folder / "model")
    if split != "none":
        # Sets are counted on other images than those of the measurement.
        cuts = {} if split == "val" else cuts
        scores, predictions = score(trainer, model, data, split, cuts)
    if figures:
        figures["confidence"]["sets"] = [] if predictions is None else predictions.sets
    metrics |= scores
    _write_model(run, options, model, data, metrics, best)
    if not is_first_process():
        return ""
    _write_predictions(run.folder, split, model, predictions)
    summary = {"finished": True, "metrics": metrics, "split": split, **facts, "checkpoint": best}
    write_json(run.folder / SUMMARY, {**summary, **figures})
    return headline(model, split, scores, predictions)


def _scored_split(options: Options, data: ImageData) -> str:
    splits = {"test": ["test", "val"], "val": ["val"], "none": []}[options.config.final_split]
    return next((name for name in splits if name in data.digests), "none")


def _write_predictions(
    folder: Path, split: str, model: Module, predictions: Predictions | None
) -> None:
    """Writes predictions.npz and predictions.csv; without predictions removes the former."""
    if predictions is None:
        (folder / FILE).unlink(missing_ok=True)
        return
    thresholds = thresholds_of(model)
    values = {**vars(predictions), "sets": None, "split": split, "thresholds": thresholds}
    with atomic(folder / FILE) as place:
        np.savez_compressed(place, **{n: v for n, v in values.items() if v is not None})
    classes = model.classes or []
    write_csv(folder / "predictions.csv", classes, predictions, thresholds=thresholds)


def _facts(
    run: RunDirectory,
    options: Options,
    trainer: Trainer,
    model: Module,
    data: ImageData,
    began: tuple[float, float],
) -> dict[str, Any]:
    """Content of summary.json about the training, which has just ended."""
    seconds, cpu = (round(now - then, 2) for now, then in zip(clocks(), began, strict=True))
    peak = peak_memory(trainer.strategy.root_device)
    epoch = (batches_per_epoch(trainer) or 1) * data.batch_size * trainer.world_size
    return {
        "command": shlex.join(["vit", "fit", *options.words.args])
        + (" # by vit.fit, with objects of Python" if options.own else ""),
        "images": {s: len(data.splits.get(s) or ()) for s in ("train", "val", "test")},
        "splits": data.digests,
        **({} if peak is None else {"peak_memory_gb": round(peak / 2**30, 2)}),
        "images_seen": data.consumed_samples,
        "steps": trainer.global_step,
        "epochs": math.ceil(data.consumed_samples / epoch),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "model": model.model.config.to_dict(),
        "classes": data.classes,
        "precision": trainer.precision,
        "processes": trainer.world_size,
        "versions": versions(),
        "hardware": hardware(),
        "train_seconds": seconds,
        "train_cpu_seconds": cpu,
        "resumed_at": run.step,
    }


def load_best(trainer: Trainer, model: Module) -> dict[str, Any]:
    """Loads the best checkpoint into the model, unless a callback has chosen the weights.

    Returns its description.
    """
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, FineTuneBySize):
            words = "an average of the first and the last step's"
            return {"file": None, "weights": words, "metrics": {}, "by_size": callback.chosen}
    best = next((c for c in trainer.checkpoint_callbacks if isinstance(c, BestCheckpoint)), None)
    if best is None or not best.best_model_path:
        return {"file": None, "weights": "last step", "metrics": {}}
    path = Path(best.best_model_path)
    file = read_checkpoint(path, like=model)
    model.load_state_dict(file["state_dict"])
    if "thresholds" in file["vit"]["extra"]:
        model.test_metrics.thresholds = file["vit"]["extra"]["thresholds"]
    score = best.best_model_score
    return {
        "file": f"checkpoints/{path.name}",
        "weights": file["vit"]["weights"],
        "monitor": best.monitor,
        "score": None if score is None else float(score),
        "epoch": int(file["epoch"]),
        "step": file["global_step"],
        "metrics": file["vit"]["metrics"],
    }


def _write_model(
    run: RunDirectory,
    options: Options,
    model: Module,
    data: ImageData,
    metrics: dict[str, float],
    checkpoint: dict[str, Any],
) -> None:
    if not (is_first_process() or any(map(is_sharded, model.parameters()))):
        return
    save_native(
        run.folder / "model",
        model.model,
        classes=model.classes,
        preprocess=data.preprocess.to_dict(),
        extra={
            **model.extra(),
            "recipe": options.recorded(),
            "metrics": metrics,
            "checkpoint": checkpoint,
        },
    )
