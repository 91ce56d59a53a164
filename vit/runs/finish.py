"""The end of a run: the best weights scored once; model/, the report and summary.json written."""

import math
import os
import shlex
import time
from functools import partial
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from vit.console import is_first_process
from vit.data.module import ImageData
from vit.extensions.inspection.looks import glances
from vit.extensions.reports.pretraining import Examples, write_pretraining
from vit.extensions.reports.results import write_results
from vit.extensions.trust.measuring import measure
from vit.hardware import hardware, peak_memory, versions
from vit.runs.closing import closing, headline
from vit.runs.directory import RunDirectory, find_checkpoint
from vit.runs.options import Module, Options
from vit.runs.predictions import Predictions
from vit.runs.records import SUMMARY
from vit.runs.scoring import COVERAGES, finite, score, thresholds_of
from vit.training.budget import batches_per_epoch
from vit.training.callbacks import FineTuneBySize
from vit.training.lightning_internals import log_at_last_step
from vit.training.saving import BestCheckpoint
from vit.weights.archives import read_checkpoint
from vit.weights.native import save_native
from vit.weights.sealed import is_sharded
from vit.writing import write_json


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
    """Scores the best weights once, writes model/ and the report; every process calls it.

    Returns what to say at the end; "" in other processes than the first. `began`: `clocks()` before
    the training. model/ is written before the scoring too, so that an unreadable image loses
    nothing.
    """
    log_at_last_step(trainer)
    seconds, cpu = (round(now - then, 2) for now, then in zip(clocks(), began, strict=True))
    peak, best = peak_memory(trainer.strategy.root_device), load_best(trainer, model)
    summary = _summary(options, trainer, model, data, peak, best)
    summary |= {"train_seconds": seconds, "train_cpu_seconds": cpu, "resumed_at": run.step}
    model.merge()  # what is scored is what is written
    _write_model(run, options, model, data, summary)
    split, cuts = summary["split"], {}
    measured = measure(trainer, model, data, summary["checkpoint"]) if data.labelled else None
    if measured is not None:
        trust, figures = measured
        summary |= figures
        if is_first_process():
            trust.write(run.folder / "model")
        if split != "val":  # sets are counted on other images than those of the measurement
            cuts = trust.cuts(COVERAGES)
    predictions, metrics = None, {}
    if split != "none":
        metrics, predictions = score(trainer, model, data, split, cuts)
    summary["metrics"] |= metrics
    if measured is not None and predictions is not None:
        summary["confidence"]["sets"] = predictions.sets
    _write_model(run, options, model, data, summary)
    if not is_first_process():
        return ""
    write_json(run.folder / SUMMARY, summary)
    _report(run, options, model, data, summary, predictions)
    write_json(run.folder / SUMMARY, {**summary, "finished": True})
    result = headline(model, split, metrics, predictions)
    return closing(run.folder, result, options, trainer, data)


def _report(
    run: RunDirectory,
    options: Options,
    model: Module,
    data: ImageData,
    summary: dict[str, Any],
    predictions: Predictions | None,
) -> None:
    """Writes what the run directory shows of the final score, in the first process."""
    split, whole = summary["split"], model
    if _is_sharded(model):  # one process cannot compute with it
        whole = (
            type(model)
            .for_scoring(
                str(run.folder / "model"),
                data.model_arguments,
                options.recorded()["model"],
                lambda: read_checkpoint(find_checkpoint(run.folder))["state_dict"],
            )
            .eval()
        )
        whole.trainer = model.trainer
    if predictions is not None:
        write_results(
            run.folder,
            split=split,
            classes=data.classes,
            predictions=predictions,
            thresholds=thresholds_of(model),
            open_image=partial(data.open_image, split),
            look=glances(whole.model, data.preprocess),
        )
    if not model.labelled:
        examples = whole.examples(data, split) if f"{split}/loss" in summary["metrics"] else None
        write_pretraining(run.folder, split, None if examples is None else Examples(**examples))


def _summary(
    options: Options, trainer: Trainer, model: Module, data: ImageData, peak: int | None, best: Any
) -> dict[str, Any]:
    """Content of summary.json before the final score.

    `peak`: the most bytes that the training held. `best`: of `load_best`.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    splits = {"test": ["test", "val"], "val": ["val"], "none": []}[options.config.final_split]
    split = next((name for name in splits if name in data.digests), "none")
    epoch = (batches_per_epoch(trainer) or 1) * data.batch_size * trainer.world_size
    return {
        "finished": False,
        "command": shlex.join(["vit", "fit", *options.words.args])
        + (" # by vit.fit, with objects of Python" if options.own else ""),
        "metrics": finite(best["metrics"]),  # of these weights, not of the last ones
        "split": split,
        "images": {s: len(data.splits.get(s) or ()) for s in ("train", "val", "test")},
        "splits": data.digests,
        **({} if peak is None else {"peak_memory_gb": round(peak / 2**30, 2)}),
        "images_seen": data.consumed_samples,
        "steps": trainer.global_step,
        "epochs": math.ceil(data.consumed_samples / epoch),
        "trained_parameters": trained,
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "model": model.model.config.to_dict(),
        "checkpoint": {name: value for name, value in best.items() if name != "metrics"},
        "classes": data.classes,
        "precision": trainer.precision,
        "processes": trainer.world_size,
        "versions": versions(),
        "hardware": hardware(),
    }


def load_best(trainer: Trainer, model: LightningModule) -> dict[str, Any]:
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
        model.thresholds = file["vit"]["extra"]["thresholds"]
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


def _is_sharded(model: Module) -> bool:
    return any(is_sharded(parameter) for parameter in model.parameters())


def _write_model(
    run: RunDirectory, options: Options, model: Module, data: ImageData, summary: dict[str, Any]
) -> None:
    if not (is_first_process() or _is_sharded(model)):
        return
    save_native(
        run.folder / "model",
        model.model,
        classes=model.classes,
        preprocess=data.preprocess.to_dict(),
        extra={
            **model.extra(),
            "recipe": options.recorded(),
            "metrics": summary["metrics"],
            "checkpoint": summary["checkpoint"],
        },
    )
