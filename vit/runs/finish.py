"""The end of a run: the best weights measured and scored once; model/ and summary.json written; the
last lines of `vit fit`."""

import math
import os
import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from torch import nn

from vit.console import is_first_process
from vit.data.module import ImageData
from vit.data.sources import PathList, SplitName
from vit.hardware import hardware, peak_memory, versions
from vit.runs.directory import RunDirectory
from vit.runs.options import Options
from vit.runs.predictions import FILE, Predictions, write_csv
from vit.runs.records import SUMMARY, Record
from vit.runs.scoring import finite, measure, score, thresholds_of
from vit.runs.trainer import Module, callbacks_of
from vit.training.budget import batches_per_epoch
from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.lightning_internals import log_at_last_step
from vit.training.saving import BestCheckpoint, averages
from vit.weights.archives import read_checkpoint
from vit.weights.native import save_native
from vit.weights.sealed import is_sharded
from vit.writing import atomic, write_json


def clocks() -> tuple[float, float]:
    """Seconds, and CPU seconds of this process and its ended workers."""
    return time.monotonic(), sum(os.times()[:4])


def finish(
    run: RunDirectory, options: Options, trainer: Trainer, model: Module, data: ImageData
) -> str:
    """Scores the best weights once and writes model/, predictions and summary.json; every process
    calls it.

    Returns the main score; "" in other processes than the first. model/ is written before the
    scoring too, so that an unreadable image loses nothing.
    """
    log_at_last_step(trainer)
    facts = _facts(run, options, trainer, model, data)
    best = load_best(trainer, model)
    metrics = finite(best.pop("metrics"))  # of these weights, not of the last ones
    model.merge()  # what is scored is what is written
    write_model = partial(_write_model, run.folder / "model", options, model, data, best)
    write_model(metrics)
    figures, cuts = measure(trainer, model, data, best, run.folder) if data.labelled else ({}, {})
    wanted: dict[str, list[SplitName]] = {"test": ["test", "val"], "val": ["val"], "none": []}
    names = wanted[options.config.final_split]
    split: SplitName | None = next((name for name in names if name in data.digests), None)
    scores, predictions = {}, None
    if split is not None:
        # Sets are counted on other images than those of the measurement.
        scores, predictions = score(trainer, model, data, split, {} if split == "val" else cuts)
    if figures:
        figures["confidence"]["sets"] = [] if predictions is None else predictions.sets
    metrics |= scores
    write_model(metrics)
    if not is_first_process():
        return ""
    if predictions is None:
        (run.folder / FILE).unlink(missing_ok=True)
    else:
        _write_predictions(run.folder, split or "none", model, predictions)
    result = headline(model, split or "none", scores, predictions)
    summary = {"finished": True, "headline": result, "metrics": metrics, "split": split or "none"}
    write_json(run.folder / SUMMARY, {**summary, **facts, "checkpoint": best, **figures})
    return result


def _write_predictions(folder: Path, split: str, model: Module, predictions: Predictions) -> None:
    """Writes predictions.npz and predictions.csv."""
    thresholds = thresholds_of(model)
    values = {**vars(predictions), "sets": None, "split": split, "thresholds": thresholds}
    arrays: dict[str, Any] = {n: v for n, v in values.items() if v is not None}
    with atomic(folder / FILE) as place:
        np.savez_compressed(place, **arrays)
    write_csv(folder / "predictions.csv", model.classes or [], predictions, thresholds=thresholds)


def _facts(
    run: RunDirectory, options: Options, trainer: Trainer, model: Module, data: ImageData
) -> Record:
    """Content of summary.json about the training, which has just ended."""
    seconds, cpu = (round(now - then, 2) for now, then in zip(clocks(), run.began, strict=True))
    peak = peak_memory(trainer.strategy.root_device)
    epoch = (batches_per_epoch(trainer) or 1) * data.batch_size * trainer.world_size
    trained = model if trainer.global_step else nn.ModuleList(model.model.head_layers)
    return {
        "command": shlex.join(["vit", "fit", *options.words.args])
        + (" # by vit.fit, with objects of Python" if options.objects else ""),
        "images": {s: len(data.splits.get(s) or ()) for s in ("train", "val", "test")},
        "splits": data.digests,
        **({} if peak is None else {"peak_memory_gb": round(peak / 2**30, 2)}),
        "images_seen": data.consumed_samples,
        "steps": trainer.global_step,
        "epochs": math.ceil(data.consumed_samples / epoch),
        "trained_parameters": sum(p.numel() for p in trained.parameters() if p.requires_grad),
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


def load_best(trainer: Trainer, model: Module) -> Record:
    """Loads the best checkpoint into the model, unless a callback has chosen the weights.

    Returns its description.
    """
    for callback in callbacks_of(trainer):
        if isinstance(callback, FineTuneBySize):
            words = "an average of the first and the last step's"
            return {"file": None, "weights": words, "metrics": {}, "by_size": callback.chosen}
    best = next((c for c in callbacks_of(trainer) if isinstance(c, BestCheckpoint)), None)
    if best is None or not best.best_model_path:
        return {"file": None, "weights": "ema" if averages(trainer) else "last step", "metrics": {}}
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
    folder: Path,
    options: Options,
    model: Module,
    data: ImageData,
    checkpoint: Record,
    metrics: dict[str, float],
) -> None:
    if is_first_process() or any(map(is_sharded, model.parameters())):
        about = {"recipe": options.recorded(), "metrics": metrics, "checkpoint": checkpoint}
        extra, preprocess = {**model.extra(), **about}, data.preprocess.to_dict()
        save_native(folder, model.model, classes=model.classes, preprocess=preprocess, extra=extra)


def headline(
    model: Module, split: str, metrics: dict[str, float], predictions: Predictions | None
) -> str:
    """The main score."""
    if split == "none":
        return model.unscored
    if not metrics:
        return f"{split} not scored"
    if predictions is None:
        return model.headline(split, metrics)
    n = len(predictions)
    if f"{split}/acc1" not in metrics:
        return f"{split} mAP  {metrics[f'{split}/map']:.4f}  ({n:,} images)"
    right = int(predictions.hits().sum())
    recall, constant = metrics[f"{split}/recall"], metrics[f"{split}/constant_acc1"]
    return (
        f"{split} accuracy  {right / n:.4f}  ({right:,} of {n:,} images)\n"
        f"mean recall of the classes {recall:.4f}; always the most frequent one {constant:.4f}"
    )


def closing(folder: Path, result: str, options: Options, trainer: Trainer, data: ImageData) -> str:
    """The result, a run's headline, its directory, and the next commands."""
    run, images = shlex.quote(str(folder)), data.root or data.dataset
    other = options.objects or not (data.splits.test or data.splits.val)
    test = f"vit test {run} --data FOLDER" if other else f"vit test {run}"
    limit = limit_option(options, trainer)
    train = f"vit fit --run_dir {run} {limit}"
    if options.objects:  # which a command cannot give
        train = f"vit fit --data FOLDER --pretrained {run}"
    elif images is not None and not (folder / "checkpoints").exists():  # the head alone is fitted
        share = options.config.data.splits.val_fraction  # which the default recipe has, too
        train = f"vit fit --data {shlex.quote(images)} --pretrained {run}"
        train += f" --data.splits.val_fraction {share}"
    cooled = options.config.get("model.schedule.cooldown_steps")  # the rate has ended at 0
    following = [test, train] if limit or (data.labelled and not cooled) else [test]
    items = (data.splits.test or data.splits.val or data.splits.train).items
    if not data.labelled:
        labelled = f"vit fit --data LABELLED --pretrained {run}"
        following[:1] = [labelled, f"vit knn {run} --data LABELLED"]
    elif isinstance(items, PathList):
        following.insert(0, f"vit classify {run} {shlex.quote(str(items[0]))}")
    page, contents = folder / "report.html", ("model/", "checkpoints/", "metrics.csv")
    present = [name for name in contents if (folder / name).exists()]
    lines = [f"run directory  {folder}  ({', '.join(present)})"]
    if page.is_file():
        lines.append(f"report         {page.resolve().as_uri()}")
    return "\n".join(["", result, *lines, "next:", *(f"  {command}" for command in following)])


def limit_option(options: Options, trainer: Trainer) -> str:
    """The option to raise for a longer run: the limit that ended this one; "" where none did."""
    stops = trainer.early_stopping_callbacks
    if patience := [stop.patience for stop in stops if stop.wait_count >= stop.patience]:
        return f"--patience {2 * max(patience)}"
    if options.config.get("model.schedule.length") is not None:
        return "--budget TIME"
    limited = 0 < trainer.max_steps <= trainer.global_step
    if options.config.get("model.schedule.cooldown_steps") or (trainer.should_stop and not limited):
        return ""
    if trainer.max_epochs == -1 or limited:
        return f"--steps {2 * max(trainer.max_steps, trainer.global_step)}"
    return f"--epochs {2 * (trainer.max_epochs or 1)}"
