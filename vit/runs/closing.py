"""The last lines of `vit fit`: the result, the run directory, and the next commands."""

import shlex
from pathlib import Path

from lightning.pytorch import Trainer

from vit.data.module import ImageData
from vit.data.sources import PathList
from vit.runs.following import carried
from vit.runs.options import Module, Options
from vit.runs.predictions import Predictions
from vit.training.budget import time_limit


def headline(
    model: Module,
    split: str,
    metrics: dict[str, float],
    predictions: Predictions | None,
) -> str:
    """The main score."""
    if split == "none":
        return "not scored: no images for it, or --final_split none"
    if not metrics:
        return f"{split} not scored"
    if predictions is None:
        return model.headline(split, metrics)
    n = len(predictions.indices)
    if f"{split}/acc1" in metrics:
        right = int((predictions.top_classes[:, 0] == predictions.labels).sum())
        recall, constant = metrics[f"{split}/recall"], metrics[f"{split}/constant_acc1"]
        return (
            f"{split} accuracy  {right / n:.4f}  ({right:,} of {n:,} images)\n"
            f"mean recall of the classes {recall:.4f}; always the most frequent one {constant:.4f}"
        )
    return f"{split} mAP  {metrics[f'{split}/map']:.4f}  ({n:,} images)"


def closing(folder: Path, result: str, options: Options, trainer: Trainer, data: ImageData) -> str:
    """The result, a run's headline, its directory, and the next commands."""
    run, in_python = shlex.quote(str(folder)), bool(options.own)  # which a command cannot give
    held_out = data.splits.test or data.splits.val
    again = (f"vit test {run}", "score it again")
    on = (f"vit fit --run_dir {run} {limit_option(trainer)}", "train on")
    if in_python or held_out is None:
        again = (f"vit test {run} --data FOLDER", "score it on other images")
    if in_python:
        on = (f"vit fit --data FOLDER --pretrained {run}", "train on other images")
    images, untrained = data.root or data.dataset, not (folder / "checkpoints").exists()
    if untrained and images is not None:
        command = f"vit fit --data {shlex.quote(images)} --pretrained {run}{carried(options)}"
        on = (command, "fine-tune all of it")
    items = (held_out or data.splits.train).items
    if not data.labelled:
        command = f"vit fit --data LABELLED --pretrained {run}"
        following = [(command, "fine-tune it"), again, on]
    elif isinstance(items, PathList):
        path, here = Path(items[0]), Path.cwd()
        picture = path.relative_to(here) if path.is_relative_to(here) else path
        command = f"vit classify {run} {shlex.quote(str(picture))}"
        following = [(command, "name what is on a picture"), again, on]
    elif data.root is not None or untrained:
        following = [again, on]
    else:
        photos = "vit fit --data my_photos/", "your own photos, a folder per class"
        following = [again, photos, ("vit recipes", "what else there is to train")]
    width = min(max(len(command) for command, _ in following), 70)
    page, contents = folder / "report.html", ("model/", "checkpoints/", "metrics.csv")
    present = [name for name in contents if (folder / name).exists()]
    lines = [
        "",
        result,
        f"run directory  {folder}  ({', '.join(present)})",
        *([f"report         {page.resolve().as_uri()}"] if page.is_file() else []),
        "next:",
        *(f"  {command:{width}}  # {why}" for command, why in following),
    ]
    return "\n".join(lines)


def limit_option(trainer: Trainer) -> str:
    """The option to raise for a longer run: the limit that ended this one."""
    if 0 < trainer.max_steps <= trainer.global_step:
        return f"--steps {2 * trainer.max_steps}"
    if time_limit(trainer) is not None and trainer.current_epoch != trainer.max_epochs:
        return "--trainer.max_time DD:HH:MM:SS"
    return f"--epochs {2 * (trainer.max_epochs or 1)}"
