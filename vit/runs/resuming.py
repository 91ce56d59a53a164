"""Checks that a resumed run continues its checkpoint, and that all processes have the same run."""

from collections.abc import Mapping
from pathlib import Path

from lightning.pytorch import LightningModule, Trainer

from vit.console import note
from vit.data.module import ImageData
from vit.errors import UserError, check_types, shorten, some_of
from vit.recipes import flat
from vit.runs.options import Module, Options
from vit.runs.records import CONFIG, Record
from vit.training.parts import from_all_processes

FREE = {"dropout", "drop_path", "drop_path_uniform", "num_classes"}
"""Fields of an architecture on which neither weights nor outputs in evaluation depend."""
Changes = dict[str, tuple[object, object]]
"""Dotted name -> (value before, value now), for options that differ."""


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> Changes:
    """The options that differ between two nested mappings."""
    then, new = dict(flat(before)), dict(flat(now))
    names = [name for name in new | then if then.get(name) != new.get(name)]
    return {name: (_with_path(then, name), _with_path(new, name)) for name in names}


def _with_path(options: Record, name: str) -> object:
    """The value of an option; the digest of weights with their path, of which it is."""
    value, of_weights = options.get(name), name.replace("weights.", "", 1)
    known = value is not None and of_weights != name and options.get(of_weights) is not None
    return f"{value} at {options[of_weights]}" if known else value


def listed(changes: Changes) -> str:
    """Text such as 'data.augment.flip (was True, is False)'."""
    pairs = ((name, shorten(was), shorten(now)) for name, (was, now) in changes.items())
    return some_of((f"{name} (was {was}, is {now})" for name, was, now in pairs), 8)


def check_changes(source: Path, options: Options, changes: Changes) -> None:
    """Notes options that differ from the run's. UserError for those that a checkpoint fixes."""
    names = ["task", "seed_everything", "model.optimizer", "model.learning.", "weights.model.loss"]
    task = options.module_class
    if not task.labelled:  # with another objective, the best score so far is of another kind
        names += [f"model.{n}" for n in options.config.model.keys() if n not in task.of_training]
    if fixed := {n: values for n, values in changes.items() if n.startswith(tuple(names))}:
        raise UserError(
            f"{source} cannot be resumed with other values of {listed(fixed)}; give those of the "
            f"run, or start a new one from its weights: --model.pretrained {source}"
        )
    if changes:
        note(f"options that differ from {source / CONFIG}: {listed(changes)}")


def check_continues(
    checkpoint: Path | None, saved: Record, model: Module, data: ImageData, trainer: Trainer
) -> None:
    """UserError unless classes, architecture, images per step, images, labels and splits are the
    checkpoint's. `saved`: its content, empty in other processes than the first."""
    if not saved:
        return
    kind = type(data).__qualname__
    check_types(checkpoint, saved, **dict.fromkeys(("vit", "run", kind), dict))
    network, images = saved["vit"], saved[kind]
    per_step = data.batch_size * trainer.world_size * trainer.accumulate_grad_batches
    shapes = [  # of the network; what is trained beside it follows from options, and may come later
        {name: tuple(state[name].shape) for name in state if name.startswith("model.")}
        for state in (saved["state_dict"], model.state_dict())
    ]
    contents = images.get("contents"), data.contents  # a folder and its shards are the same
    pairs = {
        "classes": (network["classes"], model.classes),
        "images per step": (saved["run"].get("global_batch", per_step), per_step),
        "digest of the images and labels": (images["splits"], data.digests),
        "digest of the contents of the shards": contents if all(contents) else (None, None),
        "model.architecture": (network["config"], model.model.config.to_dict()),
        "shape": shapes,
    }
    then, now = ({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))
    changes = differences(then, now)
    changes = {name: changes[name] for name in changes if name.rpartition(".")[2] not in FREE}
    if changes:
        raise UserError(
            f"cannot resume {checkpoint}: {listed(changes)}. Give the options and the images of "
            f"that run, or start a new one from its weights: --model.pretrained {checkpoint}"
        )


def check_same(
    options: Options, data: ImageData, trainer: Trainer, _: LightningModule, stage: str
) -> None:
    """A callback's `setup`. UserError if processes of a run differ in options or images."""
    if trainer.world_size == 1 or stage != "fit":
        return
    ours = {**options.recorded(), "images": data.digests}
    for rank, theirs in enumerate(from_all_processes(ours)):
        if changes := differences(theirs, ours):
            raise UserError(
                f"rank {rank} and rank {trainer.global_rank} differ: {listed(changes)}; give all "
                "processes the same command and the same images"
            )
