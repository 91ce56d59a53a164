"""A run scored again by its data section and its weights.

The directory may come from somebody else: nothing that it names is imported.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentError, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from vit.checkpoints.archives import read_checkpoint
from vit.checkpoints.pretrained import inspect_pretrained
from vit.console import note
from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.reports.predictions import Predictions
from vit.runs.directory import find_checkpoint, is_run, read_summary, recorded_options
from vit.runs.mistakes import explained
from vit.runs.objects import check_given
from vit.runs.options import PARSER, TASKS, Module
from vit.runs.processes import ChildrenAlive, check_launched, ending_together
from vit.runs.scoring import score
from vit.runs.trainer import (
    SET_HERE,
    build_trainer,
    check_arguments,
    limit_threads_of,
    quiet_lightning,
)
from vit.training.callbacks import RunProgress, StopTogether

# Recorded arguments of the Trainer that an evaluation keeps.
TRAINER = (
    "accelerator benchmark deterministic devices limit_test_batches limit_val_batches num_nodes "
    "precision"
).split()


@dataclass
class Evaluation:
    """The result of `evaluate`."""

    data: ImageData
    model: Module
    split: SplitName
    metrics: dict[str, float]
    predictions: Predictions | None
    """None without labels, or if no image could be read."""


def evaluate(
    run: Path, split: SplitName | None, args: list[str], *, predicting: bool = False
) -> Evaluation:
    """Scores the best weights of a run; every process calls it.

    Args:
        run: A run directory, finished or not.
        split: Of the run's data, or of data.root. By default test, or val where there is no test.
        args: Options of the data and the Trainer that replace those of the run.
        predicting: Predictions are needed: UserError for a run without labels.
    """
    quiet_lightning()
    if not is_run(run):
        raise UserError(f"{run} is not a run directory: it has no config.yaml of a run")
    recorded = recorded_options(run)
    module_class = TASKS[recorded["task"]]
    if predicting and not module_class.labelled:
        raise UserError(
            f"{run} was trained without labels and names no classes; fit a head to it first: "
            f"vit fit -c probe --data.root LABELLED --model.pretrained {shlex.quote(str(run))}"
        )
    built = _options(recorded, args)
    other = any(arg.startswith("--data.root") for arg in args)
    if other and _same_place(recorded["data"].get("root"), built.data.root):
        note(f"{built.data.root} is the data of the run: its held-out images are scored")
        other = False
    if not other:
        check_given(recorded.get("own"), "digests")
    weights = run / "model"
    if not (weights / "config.json").is_file():
        weights = find_checkpoint(run)  # an unfinished run
    info = inspect_pretrained(str(weights))
    data = ImageData(**built.data).read_as(labelled=module_class.labelled)
    if other:
        # Other images: labelled by the run's classes, however many of them are there.
        data.read_as(
            labelled=module_class.labelled,
            classes=info.classes or [],
            multilabel=info.extra.get("multilabel", False),
        )
    _check_images(run, data, predicting=predicting)
    if split is None:
        split = "val" if data.splits.test is None and data.splits.val is not None else "test"
        if split == "val":
            note("there are no test images: val is scored, as at the end of the run")
    if not other and split != "train":
        before = read_summary(run).get("splits", {}).get(split)
        if before not in (None, data.digests.get(split)):
            note(
                f"the images of {split} are not those of when the run was made; images that it was "
                "trained on may be among them"
            )
    data.image_set(split)  # an error before anything runs
    model = module_class.for_scoring(
        str(weights),
        data.model_arguments,
        recorded["model"],
        lambda: read_checkpoint(find_checkpoint(run))["state_dict"],
    )
    alive = ChildrenAlive()
    bar = [] if built.trainer.enable_progress_bar is False else [RunProgress()]
    trainer = build_trainer(
        **vars(built.trainer),
        logger=False,
        callbacks=[alive, *bar, *model.guards(), StopTogether()],
    )
    check_launched(trainer)
    limit_threads_of(trainer, model, data)
    with ending_together(trainer, alive):
        metrics, predictions = score(trainer, model, data, split)
    return Evaluation(data, model, split, metrics, predictions)


def _same_place(recorded: str | None, given: str | None) -> bool:
    places = [place and os.path.realpath(os.path.expanduser(place)) for place in (recorded, given)]
    return places[0] is not None and places[0] == places[1]


def _check_images(run: Path, data: ImageData, *, predicting: bool) -> None:
    """Finds the images; names the command for those without labels in a UserError."""
    try:
        _ = data.splits
    except UserError as error:
        if not predicting:
            raise
        command = f"vit classify {shlex.quote(str(run))} {shlex.quote(str(data.root))}"
        raise UserError(f"{error}; for photos without labels: {command}") from error


def _options(recorded: Mapping[str, Any], args: list[str]) -> Namespace:
    """Arguments of ImageData and of the Trainer: those recorded, overridden by `args`."""
    parser = LightningArgumentParser(prog="vit test", **PARSER)
    unused = SET_HERE | {"callbacks", "logger", "plugins"}
    settings: dict[str, Any] = {"instantiate": False, "fail_untyped": False}
    parser.add_class_arguments(Trainer, "trainer", skip=set(unused), **settings)
    parser.add_class_arguments(ImageData, "data", skip={"own"}, **settings)
    # An accelerator may be named as a class.
    kept = (item for item in recorded["trainer"].items() if not isinstance(item[1], dict))
    trainer = {name: value for name, value in kept if name in TRAINER}
    # The seed of the splits follows from that of the run, and is not recorded itself.
    splits = {**(recorded["data"].get("splits") or {}), "seed": recorded["seed_everything"]}
    data = {**recorded["data"], "global_batch": None, "splits": splits}
    data.pop("augment", None)  # of training; it may name a class or function
    sections: dict[str, Any] = {"data": data, "trainer": trainer}
    sections["trainer"]["enable_model_summary"] = False
    try:
        config = parser.parse_args(args, namespace=parser.parse_object(sections))
        check_arguments(config.trainer)
        return parser.instantiate(config)
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise explained(parser, args, error) from error
