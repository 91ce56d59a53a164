"""The end of a run: the best weights scored once, and all written for whoever comes later."""

import json
import shlex
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from vit.checkpoints.exporting import NativeInfo
from vit.checkpoints.lora_directory import write_lora
from vit.checkpoints.native import save_native
from vit.checkpoints.sealed import verify
from vit.cli.run_directory import UNFINISHED
from vit.console import is_first_process
from vit.data.decode import ImageError
from vit.data.sources import PathList
from vit.errors import UserError
from vit.hardware import hardware, versions
from vit.inspection.glance import glances
from vit.ranking import top_classes
from vit.reports.pretraining import Examples, pretraining_headline, write_pretraining
from vit.reports.results import Predictions, write_results
from vit.training.budget import time_limit
from vit.training.callbacks import FineTuneBySize
from vit.training.lora import merge_lora
from vit.writing import write_text

TOP = 5
LORA = "lora"
"""The folder of a run for what was trained, apart from the weights that it changes."""
# Images whose masked patches are shown.
EXAMPLES = 8


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
            row["own"] = outputs.gather(1, labels[:, None])[:, 0]
        else:
            row["own"] = (outputs * labels).sum(-1) / labels.sum(-1).clamp(min=1)
            # They have an entry for every class of every image: the smallest types that do.
            row |= {"labels": labels.to(torch.uint8), "classes": order.to(torch.int32)}
        self._rows.append({name: value.cpu().numpy() for name, value in row.items()})

    def gathered(self, names: list[str]) -> Predictions:
        """Every image once, sorted by its place in the set; the same on all processes.

        Hands over what was collected: it can be called once.
        """
        rows, self._rows = self._rows, []
        if torch.distributed.is_initialized():
            shares: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(shares, rows)
            rows = [row for share in shares for row in share]
        indices = np.concatenate([row["indices"] for row in rows])
        places = np.empty(len(indices), dtype=np.int64)
        places[np.argsort(indices)] = np.arange(len(indices))
        columns = {name: _arranged(rows, name, places) for name in list(rows[0])}
        return Predictions(
            indices=columns["indices"],
            names=[names[i] for i in columns["indices"]],
            labels=columns["labels"],
            top_classes=columns["classes"],
            top_probabilities=columns["probabilities"],
            label_probabilities=columns["own"],
        )


def _arranged(rows: list[dict[str, Any]], name: str, places: np.ndarray) -> np.ndarray:
    """A column of all rows, entry i at `places[i]`. Takes it out of the rows, to free memory."""
    first = rows[0][name]
    column, start = np.empty((len(places), *first.shape[1:]), first.dtype), 0
    for row in rows:
        part = row.pop(name)
        column[places[start : start + len(part)]] = part
        start += len(part)
    return column


def load_best(trainer: Trainer, model: LightningModule) -> dict[str, Any]:
    """Puts the best checkpoint's weights into the model and says which they are.

    Where a callback has chosen the weights, they are in the model.
    """
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, FineTuneBySize):
            words = "an average of the first and the last step's"
            return {"file": None, "weights": words, "metrics": {}, "by_size": callback.chosen}
    kept = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    best = next((c for c in kept if c.monitor is not None), None)
    if best is None or not best.best_model_path:
        return {"file": None, "weights": "last step", "metrics": {}}
    try:
        verify(Path(best.best_model_path))
    except UserError as error:
        raise UserError(
            f"{error}; continue with --ckpt_path last to score the weights of the last step instead"
        ) from error
    file = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    model.load_state_dict(file["state_dict"])
    if "thresholds" in file["vit"].get("extra", {}):
        model.thresholds = file["vit"]["extra"]["thresholds"]
    score = best.best_model_score
    return {
        "file": f"checkpoints/{Path(best.best_model_path).name}",
        "weights": file["vit"]["weights"],
        "monitor": best.monitor,
        "score": None if score is None else float(score),
        "epoch": int(file["epoch"]),
        "step": int(file["global_step"]),
        "metrics": file["vit"]["metrics"],
    }


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
    return metrics, collect.gathered(data.image_set(split).names) if data.labelled else None


def thresholds_of(model: Any) -> np.ndarray | None:
    """float32 `k`, above which a probability is a yes; None where the model has none."""
    values = getattr(model, "thresholds", None)
    return None if values is None else np.array(values, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is known of a run when all its processes have done their part."""

    split: str
    metrics: dict[str, float]
    """Metrics of the best weights on `split`."""
    validation: dict[str, float]
    """Metrics of the same weights when they were saved."""
    predictions: Predictions | None
    checkpoint: dict[str, Any]
    progress: dict[str, int]
    timing: dict[str, float]


def score_best(cli: Any, trainer: Trainer, timing: dict[str, float]) -> Outcome:
    """Scores the best weights of a finished training; every process calls it."""
    model, data = cli.model, cli.datamodule
    progress = {
        "images_seen": data.consumed_samples,
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "trained_parameters": sum(p.numel() for p in model.model.parameters() if p.requires_grad),
    }
    checkpoint = load_best(trainer, model)
    if cli.config.save_lora and is_first_process():
        _write_lora(cli, Path(trainer.default_root_dir) / LORA)
    merge_lora(model.model)  # what is scored is what is written
    validation = checkpoint.pop("metrics")  # of these weights, not of the last ones
    split = cli.config.final_split
    if split == "test" and data.splits.test is None:
        split = "val"
    metrics, predictions = {}, None
    if split != "none" and data.splits.get(split) is not None:
        metrics, predictions = score(trainer, model, data, split)
    return Outcome(
        split=split,
        metrics=metrics,
        validation=validation,
        predictions=predictions,
        checkpoint=checkpoint,
        progress=progress,
        timing=timing,
    )


def _write_lora(cli: Any, directory: Path) -> None:
    """What was trained, apart from the weights that it changes."""
    model, data = cli.model, cli.datamodule
    network = model.model
    info = NativeInfo(
        data.classes,
        data.preprocess.to_dict(),
        {"multilabel": data.multilabel, "recipe": _recipe(cli.config.as_dict())},
    )
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    write_lora(directory, network.state_dict(), trained, cli.config.model.pretrained, info)


def finish(
    cli: Any,
    trainer: Trainer,
    run_dir: Path,
    outcome: Outcome,
    *,
    command: str,
    as_json: bool = False,
) -> None:
    """Writes model/, summary.json, pictures and report, and prints what came out."""
    if not is_first_process():
        return
    model, data, split = cli.model, cli.datamodule, outcome.split
    summary = {
        "command": command,
        "metrics": {**outcome.validation, **outcome.metrics},
        "split": split,
        "images": {s: len(data.splits.get(s) or ()) for s in ("train", "val", "test")},
        **{name: round(seconds, 2) for name, seconds in outcome.timing.items()},
        **outcome.progress,
        "parameters": sum(p.numel() for p in model.model.parameters()),
        "model": model.model.config.to_dict(),
        "checkpoint": outcome.checkpoint,
        "classes": data.classes,
        "precision": trainer.precision,
        "processes": trainer.world_size,
        "versions": versions(),
        "hardware": hardware(),
    }
    if cli.config.batch_choice is not None:
        summary["batch_choice"] = cli.config.batch_choice
    save_native(
        run_dir / "model",
        model.model,
        classes=data.classes if data.labelled else None,
        preprocess=data.preprocess.to_dict(),
        extra={
            **(model.extra() if data.labelled else {"multilabel": False}),
            "recipe": _recipe(cli.config.as_dict()),
            "metrics": summary["metrics"],
            "checkpoint": outcome.checkpoint,
        },
    )
    text = json.dumps(summary, indent=2, ensure_ascii=False) + "\n"
    # A file name that is not Unicode comes out as JSON's own escape for it.
    write_text(run_dir / "summary.json", text, errors="backslashreplace")
    if outcome.predictions is not None:
        write_results(
            run_dir,
            split=split,
            classes=data.classes,
            predictions=outcome.predictions,
            thresholds=thresholds_of(model),
            open_image=lambda index: data.open_image(split, index),
            look=glances(model.model, data.preprocess),
        )
    if not data.labelled:
        examples = _examples(model, data, split) if outcome.metrics else None
        write_pretraining(run_dir, split, examples)
    (run_dir / UNFINISHED).unlink(missing_ok=True)
    longer = budget_option(trainer)
    last_words = closing(run_dir, split, outcome.metrics, outcome.predictions, data, longer)
    if as_json:
        print(text, end="")
        print(last_words, file=sys.stderr)
    else:
        print(last_words)


def _recipe(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as plain types, without what belongs to one start.

    A run that was interrupted and has gone on has the same files in model/ as one that was not.
    """
    recipe = json.loads(json.dumps(config, default=str))
    recipe.pop("config", None)
    return {**recipe, "ckpt_path": None, "run_dir": None, "resume": "auto"}


def _examples(model: Any, data: Any, split: str) -> Examples | None:
    """What the model says about some images of a split, spread over it; None if none opens."""
    number, opened = len(data.image_set(split)), {}
    for index in np.linspace(0, number - 1, min(EXAMPLES, number)).round().astype(int).tolist():
        with suppress(ImageError):  # with on_error=skip the run went on without it, too
            opened[index] = data.preprocess(data.open_image(split, index))
    if not opened:
        return None
    images = data.preprocess.normalize(torch.stack(list(opened.values()))).to(model.device)
    pictures = model.eval().pictures(images, torch.tensor(list(opened)))
    arrays = {
        name: values.permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()
        for name, values in pictures.items()
    }
    arrays["corrupted"] = arrays["corrupted"][..., 0] > 0
    return Examples(**arrays)


def headline(split: str, metrics: dict[str, float], predictions: Any) -> str:
    """The figure a person asks for first."""
    if not metrics:
        return "not scored (--final_split none)"
    if predictions is None:
        return pretraining_headline(split, metrics)
    n = len(predictions.indices)
    if f"{split}/acc1" in metrics:
        right = int((predictions.top_classes[:, 0] == predictions.labels).sum())
        return f"{split} accuracy  {right / n:.4f}  ({right:,} of {n:,} images)"
    return f"{split} mAP  {metrics[f'{split}/map']:.4f}  ({n:,} images)"


def budget_option(trainer: Trainer) -> str:
    """The option to raise for a longer run: the limit that ended this one."""
    if 0 < trainer.max_steps <= trainer.global_step:
        return "--trainer.max_steps N"
    if time_limit(trainer) is not None and trainer.current_epoch != trainer.max_epochs:
        return "--trainer.max_time DD:HH:MM:SS"
    return "--trainer.max_epochs N"


def closing(
    run_dir: Path,
    split: str,
    metrics: dict[str, float],
    predictions: Any,
    data: Any,
    longer: str,
) -> str:
    """What `vit fit` ends with: the result, where it is, and the next three commands."""
    items, run = data.splits.train.items, shlex.quote(str(run_dir))
    go_on = (f"vit fit --run_dir {run} --ckpt_path last {longer}", "train on")
    if not (run_dir / "checkpoints").exists() and data.root is not None:  # nothing was trained
        root = shlex.quote(str(data.root))
        go_on = (
            f"vit fit -c finetune --data.root {root} --model.pretrained {run}",
            "fine-tune all of it",
        )
    if not data.labelled:
        following = [
            (f"vit fit -c RECIPE --data.root LABELLED --model.pretrained {run}", "fine-tune it"),
            (f"vit test {run}", "score it again"),
            go_on,
        ]
    elif isinstance(items, PathList):
        first, here = Path(items[0]), Path.cwd()
        example = shlex.quote(str(first.relative_to(here) if first.is_relative_to(here) else first))
        following = [
            (f"vit classify {run} {example}", "name what is on a picture"),
            (f"vit test {run}", "score it again"),
            go_on,
        ]
    else:
        following = [
            (f"vit test {run}", "score it again"),
            ("vit fit -c finetune --data.root my_photos/", "your own pictures, a folder per class"),
            ("vit recipes", "what else there is to train"),
        ]
    width = min(max(len(command) for command, _ in following), 70)
    contents = ("report.html", "model/", "checkpoints/", "metrics.csv")
    present = [name for name in contents if (run_dir / name).exists()]
    lines = [
        "",
        headline(split, metrics, predictions),
        f"run directory  {run_dir}  ({', '.join(present)})",
        "next:",
        *(f"  {command:{width}}  # {why}" for command, why in following),
    ]
    return "\n".join(lines)
