"""The options of a run: recipes and typed arguments, and what is built from them.

The parser of LightningCLI checks them by the types of three constructors: vit.ImageData, the module
of the task, and Lightning's Trainer.
"""
# pyright: reportUnknownMemberType=false

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import jsonargparse
from jsonargparse import ActionConfigFile, Namespace  # pyright: ignore
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import Logger

from vit.console import note, say
from vit.data.find import check_source
from vit.data.module import ImageData
from vit.errors import UserError, did_you_mean
from vit.hardware import default_precision
from vit.models.fields import changed
from vit.recipes import DEFAULT_RECIPE, flat, load_yaml
from vit.runs.following import TEACHER, fill_from_weights, followed
from vit.runs.lineage import known_by
from vit.runs.mistakes import check_given, explaining
from vit.runs.records import Record
from vit.runs.short_names import RUN_DIRECTORY, Words
from vit.runs.trainer import SET_HERE, Module, check_arguments, quiet_lightning, settle_batch
from vit.tables import resolve, rows
from vit.training.callbacks.stopping import Patience
from vit.training.network_training import ADAMW  # pyright: ignore[reportUnknownVariableType]
from vit.weights.identity import identity

PARSER: Record = {"exit_on_error": False, "allow_abbrev": False, "parser_mode": "vit"}
"""Arguments of every parser of options."""
jsonargparse.set_loader("vit", partial(load_yaml, source="an option"), (UserError,))


class Options:
    """Parsed options; `config` becomes config.yaml. UserError for a mistake."""

    objects: Sequence[str] = ()
    """Names of objects of a Python program that are options too; config.yaml has only these."""

    def __init__(self, args: list[str] | Words) -> None:
        quiet_lightning()
        self.words = words = args if isinstance(args, Words) else Words(args)
        self.recipe = words.recipes[-1] if words.recipes else None
        if not words.recipes and words.run is None:
            self._choose_recipe()
        self.looked: ImageData | None = None
        self.recipes = words.layers
        self.module_class = task_of(str(words.values.get("task", "classification")))
        _check_words(words)
        # Recipes may name classes and functions in a file here, and the path of a command lacks
        # this folder. At the end, so that no file here takes the place of a library.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        # Reading attribute docstrings takes jsonargparse half a second; only --help-all needs it.
        with_texts = "help" in words.typed
        jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=with_texts)
        self.parser = parser_of(self.module_class)
        self.resolve()

    def _choose_recipe(self) -> None:
        """Says which recipe a run without one has. UserError where it must have its own."""
        task = self.words.typed.get("task")
        if task is not None and not task_of(task).labelled:
            raise UserError(
                f"--task {task} needs a recipe: -c pretrain/..., or your own (`vit recipes` lists "
                "them)"
            )
        say(f"recipe {DEFAULT_RECIPE} (-c names another, `vit recipes` lists them)")
        self.recipe = DEFAULT_RECIPE

    def resolve(self) -> None:
        """Parses the options, builds their values, and completes them by what the weights say, so
        that wrong ones are found before data is read."""
        with explaining(self.parser):
            self.config = config = self._parsed()
            seed_everything(config.seed_everything, workers=True)
            check_arguments(config.trainer)
            self.batch_trial = settle_batch(config, self.recipes, self.words.run)
            values = config.clone()
            values.trainer.pop("logger")  # which `loggers` builds, for a folder
            self._built = self.parser.instantiate(values)
            self.check_images()
            if (pseudo := self._built.data.pseudo) is not None:
                pseudo.check_loss(config.model.get("loss.kind"))
            if config.model.pretrained is not None:
                self._follow_weights()
        if config.trainer.precision is None:
            precision, reason = default_precision(config.trainer.accelerator or "auto")
            say(f"precision {precision}: {reason} (--trainer.precision)")
            config.trainer.precision = self._built.trainer.precision = precision

    def _parsed(self) -> Namespace:
        """The options: of what is below the recipes, of these, and of the words."""
        words, (run, data) = self.words, followed(self.words)
        layers: list[Record] = [{f"data.{name}": value for name, value in data.items()}]
        layers += _with_architectures(self.recipes)
        chosen = {"model.optimizer", "model.optimizer.class_path"} & words.values.keys()
        if "model.optimizer.lr" in words.typed and not chosen:
            adamw = {"class_path": "torch.optim.AdamW", "init_args": cast(Record, ADAMW)}
            layers.append({"model": {"optimizer": adamw}})
        texts = (json.dumps(layer, default=str, ensure_ascii=False) for layer in layers)
        recipes = [f"--config={text}" for text in texts]  # JSON is YAML
        config = self.parser.parse_args([*recipes, *words.long])
        usual = self.parser.get_defaults().data
        if taken := [name for name in data if config.data[name] != usual[name]]:
            values = ", ".join(f"data.{name} {config.data[name]}" for name in taken)
            note(f"as in {run}, whose images these are: {values}")
        return config

    def check_images(self) -> None:
        """UserError without images, and for two sets of them."""
        data = self.config.data
        named = [name for name in ("dataset", "root") if f"data.{name}" in self.words.typed]
        sets = [f"data.{name}={data[name]}" for name in named if data[name] is not None]
        if len(sets) > 1:
            raise UserError(f"{' and '.join(sets)} are two sets of images; give one")
        if not self.objects and not named:
            check_given(self.config.own, "images", "callbacks", "augment")
        check_source(data.dataset, data.root)

    def _follow_weights(self) -> None:
        """Takes from the weights what is open. Images are looked at before these are fetched."""
        model = self.config.model
        model.pretrained = self._built.model.pretrained = os.path.expanduser(model.pretrained)
        if not os.path.exists(model.pretrained):
            self.looked = self.make_data().look()
        fill_from_weights(self.config, self._built)

    @cached_property
    def data(self) -> ImageData:
        """The data module; its images are found at first use."""
        return self.make_data().unseen_by(known_by(self.config.model.pretrained))

    def make_data(self, images: object = None) -> ImageData:
        data = (self.module_class.data_module or ImageData)(**self._built.data, images=images)
        return data.read_as(labelled=self.module_class.labelled)

    def build_model(self, data: ImageData) -> Module:
        """Module with the classes, image size and preprocessing of the data."""
        make = cast(Callable[..., Module], self.module_class)  # each has arguments of its own
        module = make(**self._built.model, facts=data.facts)
        module.length.began = self.words.began
        return module

    @property
    def trainer(self) -> Record:
        """Arguments of the Trainer, except those that a run adds to."""
        arguments = cast(Record, vars(self._built.trainer))
        added = ("callbacks", "logger", "plugins")
        return {name: value for name, value in arguments.items() if name not in added}

    def listed(self, name: Literal["callbacks", "plugins"]) -> list[Any]:
        """The recipe's list under trainer.`name`."""
        return _as_list(self._built.trainer.get(name))

    def loggers(self, folder: Path) -> list[Logger]:
        """Loggers of the recipe; those that are chosen by name write into the folder."""
        config = Namespace(trainer=Namespace(logger=self.config.clone().trainer.logger))
        for entry in _as_list(config.trainer.logger):
            arguments: Record = entry.get("init_args") or {}
            if arguments.get("save_dir") == RUN_DIRECTORY:
                arguments["save_dir"] = str(folder)
        with explaining(self.parser):
            return _as_list(self.parser.instantiate(config).trainer.logger)

    def early_stopping(self, data: ImageData, monitor: str) -> list[Patience]:
        """The callback of --patience. UserError without validation images."""
        if (patience := self.config.patience) is None:
            return []
        if data.splits.val is None or self.config.trainer.limit_val_batches == 0:
            raise UserError(f"patience={patience} needs val/ or --data.splits.val_fraction 0.1")
        rule: Record = {"patience": int(patience), "mode": "min" if "loss" in monitor else "max"}
        return [Patience(monitor, **rule, check_on_train_epoch_end=False)]  # before best.ckpt

    def recorded_text(self) -> str:
        """The configuration as YAML, without --run_dir and --resume, with absolute paths."""
        config = self.config.clone()
        config.pop("config", None)
        config.run_dir, config.resume = None, "auto"
        places = [(config.data, "root"), (config.model, "pretrained"), (config.model, TEACHER)]
        if (pseudo := self._built.data.pseudo) is not None:
            places += [(config.data.pseudo.init_args, name) for name in pseudo.paths]
        for group, name in places:
            place = group.get(name) and os.path.abspath(os.path.expanduser(group[name]))
            if place and os.path.exists(place):  # not a name or the address of a hub
                group[name] = place  # so that the run can be scored from any directory
        text = self.parser.dump(config, skip_unset=False)  # without a hidden option
        hidden = {"own": self.objects, "weights": self.weights}  # JSON is YAML
        return text + "".join(f"{n}: {json.dumps(v)}\n" for n, v in hidden.items() if v)

    @cached_property
    def weights(self) -> dict[str, str]:
        """The `identity` of the weights that each of these options names."""
        names = ("model.pretrained", f"model.{TEACHER}")
        return {n: identity(path) for n in names if (path := self.config.get(n)) is not None}

    def cool_down_from(self, step: int) -> None:
        """Makes a typed --cooldown all that follows `step`, unless a limit is typed."""
        limits, steps = {"trainer.max_epochs", "trainer.max_steps"}, "model.schedule.cooldown_steps"
        if steps in self.words.typed and not limits & self.words.typed.keys():
            total: int = step + self.config[steps]
            for place in (self.config, self._built):
                place.trainer.max_steps, place.trainer.max_epochs = total, -1
                place.model.schedule.length = None
            say(f"cooldown: from step {step:,} to {total:,}")

    def continuing(self, folder: Path) -> str:
        """A sentence with the command that continues the run in `folder`."""
        return f"vit fit --run_dir {shlex.quote(str(folder))} continues it"

    def recorded(self) -> Record:
        """The content of config.yaml, in JSON types."""
        return load_yaml(self.recorded_text(), "the options")


def parser_of(task: type[Module]) -> LightningArgumentParser:
    """The parser of the options of a task."""
    parser = LightningArgumentParser(prog="vit fit", **PARSER)
    add = cast(Callable[..., object], parser.add_argument)
    add("-c", "--config", action=ActionConfigFile, help="A recipe: its name, or a file.")
    add("--seed_everything", type=int, default=0, help="Seed of all draws.")
    settings: Record = {"instantiate": False, "fail_untyped": False, "sub_configs": True}
    parser.add_class_arguments(Trainer, "trainer", skip={*SET_HERE}, **settings)
    parser.add_class_arguments(task, "model", skip={"facts"}, **settings)
    parser.add_class_arguments(task.data_module or ImageData, "data", skip={"images"}, **settings)
    other = {"num_sanity_val_steps": 0, "enable_model_summary": False, "log_every_n_steps": 10}
    parser.set_defaults({f"trainer.{name}": value for name, value in other.items()})
    text = "classification; or masked_patches, mae, autoregressive or dino, without labels."
    add("--task", type=str, default="classification", help=text)
    text = "Default: runs/DATA-RECIPE; runs/RECIPE if that has data."
    add("--run_dir", type=str | None, help=text)
    text = "auto: the run in --run_dir, if any; never: a new run; PATH: that run or checkpoint."
    add("--resume", type=str, default="auto", help=text)
    text = "Seconds between two saves of last.ckpt. Default: 60 at ends of epochs, 900 within one."
    add("--save_every", type=NonNegativeFloat | None, help=text)  # pyright: ignore
    text = "Images that the finished run is scored on; val where a set has no test images."
    add("--final_split", type=Literal["test", "val", "none"], default="test", help=text)
    text = "Validations without a better score (val/acc1, val/map or val/loss) that end the run."
    add("--patience", type=PositiveInt | None, help=text)  # pyright: ignore
    for name, kind in (("own", list[str]), ("weights", dict[str, str])):  # of config.yaml alone
        add(f"--{name}", type=kind | None, help=argparse.SUPPRESS)
    parser.link_arguments("seed_everything", "data.seed")
    return parser


def _as_list(value: object) -> list[Any]:
    values: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore
    return [] if value in (None, True, False) else values


def task_of(task: str) -> type[Module]:
    """The module that is trained by a task; it decides which options there are."""
    tasks = rows("tasks")
    if task not in tasks:
        raise UserError(f"unknown task {task!r}{did_you_mean(task, tasks)}; choose {[*tasks]}")
    return resolve(tasks[task])


OF_STEPS = re.compile(
    r"(--)?(trainer\.max_(epochs|steps)|data\.(augment|pseudo|sampling\.repeats)|patience|model\.("
    r"optimizer|schedule(?!\.length)|mixing|loss(?!\.class_weights)|adaptation|learning))"
)
"""Beginnings of options that only training steps read."""


def _check_words(words: Words) -> None:
    """UserError for a typed --model.name beside sizes from a recipe, and for an option of steps
    beside a recipe that takes none."""
    fields = [name for name in words.values if name.startswith("model.architecture.")]
    sizes = {name.split(".")[2] for name in fields} & {"width", "depth", "num_heads", "mlp_dim"}
    with_fields = any(name.startswith("model.architecture") for name in words.typed)
    if "model.name" in words.typed and sizes and not with_fields:
        raise UserError(
            f"--model.name beside the recipe's own {', '.join(sorted(sizes))} would change the "
            "name alone; add --model.architecture null, or sizes"
        )
    steps = (n for n, text in words.typed.items() if OF_STEPS.match(n) and text != "-1")
    recipe = dict(pair for layer in words.layers for pair in flat(layer))
    values = [recipe.get(f) for f in ("trainer.max_steps", "model.optimizer.init_args.lr")]
    if values == [1, 0] and (name := next(steps, None)):  # one step at most, and no rate
        raise UserError(
            f"{words.setters[name][0]} has no effect: the recipe fits a head in closed form and "
            "takes no step; leave it out, or choose -c finetune"
        )


def _with_architectures(recipes: list[Record]) -> Iterator[Record]:
    """The recipes, each with the fields of the architecture of those before it, since the last one
    that names a model; the parser would take its own alone."""
    fields: Record | None = None
    for recipe in recipes:
        model: Record = recipe.get("model") or {}
        if "architecture" in model:
            changes, before = model["architecture"], {} if "name" in model else fields or {}
            fields = None if changes is None else changed(before, changes)
            recipe = {**recipe, "model": {**model, "architecture": fields}}
        yield recipe
