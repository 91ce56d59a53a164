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
from vit.data.sampler import evaluated
from vit.data.sources import SplitName
from vit.errors import UserError
from vit.inference.engines import Engine, open_engine
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
ON_CPU = ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.precision=32-true"]
"""Of an exported model."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run, and the images that it is scored on."""

    run: Path
    weights: Path
    recorded: dict[str, Any]
    """The content of config.yaml."""
    trainer: Namespace
    data: ImageData
    split: SplitName
    engine: Engine | None
    """That computes the logits, if it is not PyTorch."""


def opened(
    run: Path,
    split: SplitName | None,
    args: list[str],
    *,
    predicting: bool = False,
    exported: Path | None = None,
) -> Subject:
    """Finds weights and images; every process calls it.

    Args:
        run: A run directory, finished or not.
        split: Of the run's data, or of data.root. By default test, or val where there is no test.
        args: Options of the data and the Trainer that replace those of the run.
        predicting: Predictions are needed: UserError for a run without labels.
        exported: A file of `vit export` that computes the logits, on the CPU in one process unless
            `args` say otherwise.
    """
    engine = None if exported is None else open_engine(exported)
    if engine is not None:
        args = [*ON_CPU, *args]
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
    other = any(arg.startswith("--data.root") for arg in args)
    if not other:
        check_given(recorded.get("own"), "images")
    built = _options(recorded, args)
    if other and same_place(recorded["data"].get("root"), built.data.root):
        note(f"{built.data.root} is the data of the run: its held-out images are scored")
        other = False
    weights = run / "model"
    if not (weights / "config.json").is_file():
        weights = find_checkpoint(run)  # an unfinished run
    info = inspect_pretrained(str(weights))
    data = ImageData(**built.data).read_as(
        labelled=module_class.labelled,
        # Other images are labelled by the run's classes, however many of them are there.
        classes=(info.classes or []) if other else None,
        multilabel=info.extra.get("multilabel", False),
    )
    _check_images(run, data, predicting=predicting)
    split = _split(run, data, split, other=other)
    parts = {"run": run, "weights": weights, "recorded": recorded, "trainer": built.trainer}
    return Subject(**parts, data=data, split=split, engine=engine)


def _split(run: Path, data: ImageData, split: SplitName | None, *, other: bool) -> SplitName:
    """The split that is scored; UserError without its images."""
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
    return split


def evaluate(subject: Subject) -> tuple[Module, dict[str, float], Predictions | None]:
    """The model with a run's best weights, its metrics, and the predictions (None without labels,
    or if no image could be read); every process calls it."""
    run, data = subject.run, subject.data
    model = TASKS[subject.recorded["task"]].for_scoring(
        str(subject.weights),
        data.model_arguments,
        subject.recorded["model"],
        lambda: read_checkpoint(find_checkpoint(run))["state_dict"],
    )
    if (engine := subject.engine) is not None:
        _check_same(engine, model, run)
        # The engine takes pixels, and normalises them itself.
        data.on_after_batch_transfer = lambda batch, dataloader_idx: batch
        model.forward = lambda images: engine.tensors(images)["logits"]
    alive = ChildrenAlive()
    bar = [] if subject.trainer.enable_progress_bar is False else [RunProgress()]
    trainer = build_trainer(
        **vars(subject.trainer),
        logger=False,
        callbacks=[alive, *bar, *model.guards(), StopTogether()],
    )
    check_launched(trainer)
    limit_threads_of(trainer, model, data)
    with ending_together(trainer, alive):
        return model, *score(trainer, model, data, subject.split)


def _check_same(engine: Engine, model: Module, run: Path) -> None:
    """UserError for an exported model of another purpose than the run's."""
    ours = {"classes": model.classes, "preprocess": model.preprocess}
    ours["multilabel"] = model.extra()["multilabel"]
    other = [name for name in ours if getattr(engine.description, name) != ours[name]]
    if other:
        raise UserError(
            f"the exported file has other {', '.join(other)} than {run}; name the run that it is of"
        )


def held_out_images(run: Path, count: int) -> list[Any]:
    """At most so many images drawn of val, or else of test; [] if the data is gone."""
    recorded = recorded_options(run)
    try:
        data = ImageData(**_options(recorded, []).data)
        images = data.splits.val or data.splits.test
    except UserError as error:
        note(f"the images of {run} are not used: {error}")
        return []
    if images is None:
        return []
    return [images.items[place] for place in evaluated(len(images), count, data.seed)]


def same_place(recorded: str | None, given: str | None) -> bool:
    """Whether two folders or files are one; not if one of them is None."""
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
    kept = {name: recorded["trainer"].get(name) for name in TRAINER}
    trainer = {name: value for name, value in kept.items() if not isinstance(value, dict)}
    trainer["enable_model_summary"] = False
    # The seed of the splits follows from that of the run, and is not recorded itself.
    splits = {**(recorded["data"].get("splits") or {}), "seed": recorded["seed_everything"]}
    data = {**recorded["data"], "global_batch": None, "splits": splits}
    for of_training in ("augment", "pseudo"):  # the first may name a class or function
        data.pop(of_training, None)
    try:
        before = parser.parse_object({"data": data, "trainer": trainer})
        config = parser.parse_args(args, namespace=before)
        check_arguments(config.trainer)
        return parser.instantiate(config)
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise explained(parser, args, error) from error
