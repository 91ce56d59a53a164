"""The last lines of `vit fit`: the result, the run directory, and the next commands."""

import shlex
from pathlib import Path

from lightning.pytorch import Trainer

from vit.data.module import ImageData
from vit.data.sources import PathList
from vit.runs.options import Options
from vit.runs.predictions import Predictions
from vit.runs.trainer import Module
from vit.training.budget import time_limit


def headline(
    model: Module, split: str, metrics: dict[str, float], predictions: Predictions | None
) -> str:
    """The main score."""
    if split == "none":
        return "not scored: no images for it, or --final_split none"
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
    other = options.own or not (data.splits.test or data.splits.val)
    test = f"vit test {run} --data FOLDER" if other else f"vit test {run}"
    train = f"vit fit --run_dir {run} {limit_option(trainer)}"
    if options.own:  # which a command cannot give
        train = f"vit fit --data FOLDER --pretrained {run}"
    elif images is not None and not (folder / "checkpoints").exists():  # the head alone is fitted
        share = options.config.data.splits.val_fraction  # which the default recipe has, too
        train = f"vit fit --data {shlex.quote(images)} --pretrained {run}"
        train += f" --data.splits.val_fraction {share}"
    following = [test, train]
    items = (data.splits.test or data.splits.val or data.splits.train).items
    if not data.labelled:
        following.insert(0, f"vit fit --data LABELLED --pretrained {run}")
    elif isinstance(items, PathList):
        following.insert(0, f"vit classify {run} {shlex.quote(str(items[0]))}")
    page, contents = folder / "report.html", ("model/", "checkpoints/", "metrics.csv")
    present = [name for name in contents if (folder / name).exists()]
    lines = [f"run directory  {folder}  ({', '.join(present)})"]
    if page.is_file():
        lines.append(f"report         {page.resolve().as_uri()}")
    return "\n".join(["", result, *lines, "next:", *(f"  {command}" for command in following)])


def limit_option(trainer: Trainer) -> str:
    """The option to raise for a longer run: the limit that ended this one."""
    if 0 < trainer.max_steps <= trainer.global_step:
        return f"--steps {2 * trainer.max_steps}"
    if time_limit(trainer) is not None and trainer.current_epoch != trainer.max_epochs:
        return "--trainer.max_time DD:HH:MM:SS"
    return f"--epochs {2 * (trainer.max_epochs or 1)}"
