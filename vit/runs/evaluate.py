"""A run scored again by its data section and its weights.

The directory may come from somebody else: nothing that it names is imported.
"""
# pyright: reportUnknownMemberType=false

import shlex
from pathlib import Path
from typing import cast

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from vit.console import note
from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.errors import UserError, check_types, shorten, some_of
from vit.preprocessing import check_choice
from vit.recipes import flat
from vit.runs.directory import find_checkpoint
from vit.runs.following import same_place
from vit.runs.lineage import known_by, note_seen
from vit.runs.mistakes import check_given, explaining
from vit.runs.options import PARSER, task_of
from vit.runs.predictions import Predictions
from vit.runs.processes import ChildrenAlive, ending_together
from vit.runs.records import CONFIG, Record, check_run, read_summary, recorded_options
from vit.runs.scoring import score
from vit.runs.trainer import (
    SET_HERE,
    Module,
    build_trainer,
    check_arguments,
    limit_threads_of,
    quiet_lightning,
)
from vit.tables import rows
from vit.training.callbacks.progress import RunProgress
from vit.training.callbacks.stopping import StopTogether
from vit.weights.archives import read_checkpoint
from vit.weights.pretrained import inspect_pretrained

# Recorded arguments of the Trainer that an evaluation keeps.
TRAINER = (
    "accelerator benchmark deterministic devices limit_test_batches limit_val_batches num_nodes "
    "precision"
).split()
OF_TRAINING = ("augment", "pseudo", "crops")


class Subject:
    """A run, and the images that it is scored on; every process makes one.

    A row of the table `subjects` is a subclass whose first argument is the file of its option.
    """

    data_class: type[ImageData] = ImageData
    engine_name: str | None = None
    """The runtime that computes in place of PyTorch."""

    def __init__(
        self, run: Path, split: SplitName | None, args: list[str], *, predicting: bool = False
    ) -> None:
        """Finds weights and images.

        Args:
            run: A run directory, finished or not.
            split: Of the run's data, or of data.root. By default test, or val without test images.
            args: Options of the data and the Trainer that replace those of the run.
            predicting: Predictions are needed: UserError for a run without labels.
        """
        quiet_lightning()
        self.run, self.recorded = run, _checked_options(run)
        self.module_class = task_of(self.recorded["task"])
        if predicting and not self.module_class.labelled:
            raise UserError(
                f"{run} was trained without labels and names no classes; fit a head to it first: "
                f"vit fit -c probe --data LABELLED --pretrained {run}"
            )
        other = any(arg.startswith("--data.root") for arg in args)
        check_given([] if other else self.recorded.get("own"), "images")
        options = _options(run, self.recorded, args)
        self.trainer = options.trainer
        self._of_model: Record = options.get("model") or self.recorded["model"]
        if other and same_place(self.recorded["data"].get("root"), options.data.root):
            note(f"{options.data.root} is the data of the run, and split as it was")
            other = False
        self.weights = run / "model"
        if not (self.weights / "config.json").is_file():
            self.weights = find_checkpoint(run)  # an unfinished run
        self.data = self.data_class(**options.data).unseen_by(known_by(run, before=True))
        classes = self._read_as(other)
        if predicting:
            self._check_labels()
        self.split: SplitName = split or self._default_split(other)
        self.data.image_set(self.split)  # an error before anything runs
        if classes and (differ := {*classes} ^ {*self.data.classes}):
            names = some_of(map(repr, sorted(differ)), 3)
            raise UserError(f"the data of {run} has other classes now: {names}; give --data")
        if other or self.split != "train":
            self.note_images(other)

    def _read_as(self, other: bool) -> list[str] | None:
        info = inspect_pretrained(str(self.weights))
        self.data.read_as(
            labelled=self.module_class.labelled,
            # Other images are labelled by the run's classes, however many of them are there.
            classes=(info.classes or []) if other else None,
            multilabel=info.extra.get("multilabel", False),
        )
        return info.classes if self.module_class.labelled else None

    def _check_labels(self) -> None:
        """UserError that names the command for images without labels."""
        try:
            _ = self.data.splits
        except UserError as error:
            run, root = (shlex.quote(str(place)) for place in (self.run, self.data.root))
            command = f"vit classify {run} {root}"
            raise UserError(f"{error}; for photos without labels: {command}") from error

    def note_images(self, other: bool) -> None:
        """Notes images that are no more those of the run, and those that its weights learned."""
        splits: Record = read_summary(self.run).get("splits") or {}
        before = None if other else splits.get(self.split)
        if before is not None and before != self.data.digests[self.split]:
            note(
                f"the images of {self.split} are not those of when the run was made; images that "
                "it was trained on may be among them"
            )
        note_seen(self.run, self.data.image_set(self.split), self.split)

    def _default_split(self, other: bool) -> SplitName:
        splits = self.data.splits
        if other:
            return splits.scored
        if splits.test is not None or splits.val is None:
            return "test"
        note("there are no test images: val is scored, as at the end of the run")
        return "val"

    def build_model(self) -> Module:
        """The module with the run's best weights."""
        return self.module_class.for_scoring(
            str(self.weights),
            self.data.facts,
            self._of_model,
            lambda: read_checkpoint(find_checkpoint(self.run))["state_dict"],
        )

    def evaluate(self) -> tuple[Module, dict[str, float], Predictions | None]:
        """The model with the run's best weights, its metrics, and the predictions (None without
        labels, or if no image could be read); every process calls it."""
        model = self.build_model()
        alive = ChildrenAlive()
        bar = [] if self.trainer.enable_progress_bar is False else [RunProgress()]
        callbacks = [alive, *bar, *model.guards(), StopTogether()]
        trainer = build_trainer(**vars(self.trainer), logger=False, callbacks=callbacks)
        limit_threads_of(trainer, model, self.data)
        with ending_together(trainer, alive):
            return model, *score(trainer, model, self.data, self.split)


def data_options(run: Path, args: list[str]) -> Record:
    """Arguments of ImageData: those of a run, replaced by `args`. UserError as for a Subject."""
    return cast(Record, vars(_options(run, _checked_options(run), args).data))


def _checked_options(run: Path) -> Record:
    """Content of config.yaml. UserError without one, and where it is not as a run writes it."""
    check_run(run)
    file, options = run / CONFIG, recorded_options(run)
    sections = dict.fromkeys(("data", "model", "trainer"), dict)
    check_types(file, options, task=str, seed_everything=int, own=list | None, **sections)
    check_types(f"{file}: data", options["data"], splits=dict | None)
    check_types(f"{file}: model", options["model"], loss=dict | None)
    check_choice(f"{file}: task", options["task"], (*rows("tasks"),))
    return options


def _options(run: Path, recorded: Record, args: list[str]) -> Namespace:
    """Arguments of ImageData and of the Trainer: those recorded, overridden by `args`; for a task
    without labels those of its objective, too.

    UserError for a recorded value that is used and not plain: the parser would import the class, or
    read the file, that it names.
    """
    parser, task = LightningArgumentParser(prog="vit test", **PARSER), task_of(recorded["task"])
    unused = SET_HERE | {"callbacks", "logger", "plugins"}
    settings: Record = {"instantiate": False, "fail_untyped": False}
    parser.add_class_arguments(Trainer, "trainer", skip=set(unused), **settings)
    # Augmentation and answers are of training, and may name a class or function.
    parser.add_class_arguments(ImageData, "data", skip={"images", *OF_TRAINING}, **settings)
    data = {**recorded["data"], "global_batch": None, "seed": recorded["seed_everything"]}
    data = {name: value for name, value in data.items() if name not in OF_TRAINING}
    sections: Record = {"data": data}
    if not task.labelled:
        parser.add_class_arguments(task, "model", skip={*task.of_training}, **settings)
        model: Record = recorded["model"]
        sections["model"] = {n: v for n, v in model.items() if n not in task.of_training}
    names = {*parser.get_defaults().keys()}
    for name, value in flat(sections):
        if name not in names or not _is_plain(value):
            raise UserError(
                f"{run / CONFIG}: {name} ({shorten(value)}) is not an option with a plain value; "
                "correct it, or copy the run again"
            )
    # An accelerator may be named as a class.
    trainer = {n: v for n in TRAINER if _is_plain(v := recorded["trainer"].get(n))}
    with explaining(parser, f"{run / CONFIG}: "):
        trainer["enable_model_summary"] = False
        before = parser.parse_object({**sections, "trainer": trainer})
    with explaining(parser):
        config = parser.parse_args(args, namespace=before)
        check_arguments(config.trainer)
        return parser.instantiate(config)


def _is_plain(value: object) -> bool:
    """A number, text or nothing, or a list of them."""
    values: list[object] = value if isinstance(value, list) else [value]  # pyright: ignore
    return all(isinstance(each, str | int | float | None) for each in values)
