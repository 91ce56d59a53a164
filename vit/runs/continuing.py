"""Checks that a checkpoint fits the run that is to resume from it."""

from typing import Any

from lightning.pytorch import Trainer

from vit.data.module import ImageData
from vit.errors import UserError, shorten, some_of
from vit.runs.directory import RunDirectory
from vit.runs.options import Module

# Fields of an architecture on which neither weights nor outputs in evaluation depend.
FREE = {"dropout", "drop_path", "drop_path_uniform", "num_classes"}


def check_continues(run: RunDirectory, model: Module, data: ImageData, trainer: Trainer) -> None:
    """UserError for other classes, architecture, images per step, images, labels or splits."""
    saved = run.saved
    if saved is None:  # a new run, or not the first process
        return
    about, digests = saved["vit"], saved[type(data).__qualname__]["splits"]
    per_step = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
    config = {n: v for n, v in model.model.config.to_dict().items() if n not in FREE}
    shapes, before = (
        {name: tuple(value.shape) for name, value in state.items()}
        for state in (model.state_dict(), saved["state_dict"])
    )
    facts: dict[str, tuple[Any, Any]] = {
        "classes": (about["classes"], model.classes),
        **{f"model.architecture.{n}": (about["config"].get(n), v) for n, v in config.items()},
        "images per step (batch_size x processes x accumulation)": (
            saved["run"].get("global_batch", per_step),
            per_step,
        ),
        **{
            f"digest of the images and labels of {split}": (digests.get(split), digest)
            for split, digest in data.digests.items()
        },
        **{f"shape of {name}": (before.get(name), shape) for name, shape in shapes.items()},
    }
    differing = [
        f"{name} was {shorten(str(then))}, is {shorten(str(now))}"
        for name, (then, now) in facts.items()
        if then != now
    ]
    if differing:
        raise UserError(
            f"cannot resume {run.checkpoint}: {some_of(differing, 5)}. Give the options and "
            f"the images of that run, or start a new one from its weights: --model.pretrained "
            f"{run.checkpoint}"
        )
