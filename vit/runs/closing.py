"""The last lines of `vit fit`: the result, the run directory, and the next commands."""

import shlex
from pathlib import Path
from typing import Any

from vit.runs.predictions import Predictions
from vit.training.network_training import NetworkTraining


def headline(
    model: NetworkTraining[Any, Any],
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


def closing(
    folder: Path,
    result: str,
    *,
    longer: str,
    labelled: bool,
    root: str | None,
    dataset: str | None,
    more: str,
    held_out: bool,
    in_python: bool,
    example: Path | None,
) -> str:
    """The result, the run directory, and the next commands.

    `result`: its headline. `longer`: the option that lets the run train on. `root` and `example`:
    the user's images and one picture among them, if any. `dataset`: a name, without root. `more`:
    options with which another run reads and cuts them as this one. `held_out`: there are val or
    test images. `in_python`: the run needs objects, which a command cannot give.
    """
    run = shlex.quote(str(folder))
    again = (f"vit test {run}", "score it again")
    on = (f"vit fit --run_dir {run} {longer}", "train on")
    if in_python or not held_out:
        again = (f"vit test {run} --data FOLDER", "score it on other images")
    if in_python:
        on = (f"vit fit --data FOLDER --pretrained {run}", "train on other images")
    data, untrained = root or dataset, not (folder / "checkpoints").exists()
    if untrained and data is not None:
        command = f"vit fit --data {shlex.quote(data)} --pretrained {run}{more}"
        on = (command, "fine-tune all of it")
    if not labelled:
        command = f"vit fit --data LABELLED --pretrained {run}"
        following = [(command, "fine-tune it"), again, on]
    elif example is not None:
        below = example.is_relative_to(Path.cwd())
        picture = example.relative_to(Path.cwd()) if below else example
        command = f"vit classify {run} {shlex.quote(str(picture))}"
        following = [(command, "name what is on a picture"), again, on]
    elif root is not None or untrained:
        following = [again, on]
    else:
        photos = "vit fit --data my_photos/", "your own photos, a folder per class"
        following = [again, photos, ("vit recipes", "what else there is to train")]
    width = min(max(len(command) for command, _ in following), 70)
    contents = ("model/", "checkpoints/", "metrics.csv")
    present = [name for name in contents if (folder / name).exists()]
    page = folder / "report.html"
    lines = [
        "",
        result,
        f"run directory  {folder}  ({', '.join(present)})",
        *([f"report         {page.resolve().as_uri()}"] if page.is_file() else []),
        "next:",
        *(f"  {command:{width}}  # {why}" for command, why in following),
    ]
    return "\n".join(lines)
