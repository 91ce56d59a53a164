"""Checks that a checkpoint fits the run that is to resume from it."""

from collections.abc import Mapping
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
    per_step = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
    config, state = model.model.config.to_dict(), model.state_dict()
    now = _facts(model.classes, config, per_step, data.digests, state)
    about, position = saved["vit"], saved[type(data).__qualname__]
    before = _facts(
        about["classes"],
        {name: about["config"].get(name) for name in config},
        saved["run"].get("global_batch", per_step),
        position["splits"],
        saved["state_dict"],
    )
    differing = [
        f"{name} was {shorten(str(before.get(name)))}, is {shorten(str(value))}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if differing:
        raise UserError(
            f"cannot resume {run.checkpoint}: {some_of(differing, 5)}. Give the options and "
            f"the images of that run, or start a new one from its weights: --model.pretrained "
            f"{run.checkpoint}"
        )


def _facts(
    classes: list[str] | None,
    config: Mapping[str, Any],
    per_step: int,
    digests: Mapping[str, str],
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """Facts that must be the same, by their names in the message."""
    architecture = {n: list(v) if isinstance(v, tuple) else v for n, v in config.items()}
    return {
        "classes": classes,
        **{f"model.architecture.{n}": v for n, v in architecture.items() if n not in FREE},
        "images per step (batch_size x processes x accumulation)": per_step,
        **{f"digest of the images and labels of {split}": d for split, d in digests.items()},
        **{f"shape of {name}": tuple(value.shape) for name, value in state.items()},
    }
