"""The options of a run: recipes and typed arguments, and what is built from them.

The parser of LightningCLI checks them by the types of three constructors: vit.ImageData, the module
of the task, and Lightning's Trainer.
"""

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import torch
from jsonargparse import ActionConfigFile, Namespace  # pyright: ignore
from jsonargparse.typing import NonNegativeFloat, PositiveInt
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from vit.console import note, say
from vit.data.find import check_source
from vit.data.module import ImageData
from vit.errors import Range, UserError, check_range, did_you_mean
from vit.hardware import default_precision
from vit.inference.lineage import known_by
from vit.models.fields import changed
from vit.recipes import DEFAULT_RECIPE
from vit.runs.batch import settle_batch
from vit.runs.following import TEACHER, fill_from_weights, followed
from vit.runs.mistakes import check_given, explaining
from vit.runs.short_names import Words
from vit.runs.trainer import (
    RUN_DIRECTORY,
    SET_HERE,
    check_arguments,
    quiet_lightning,
    with_logger,
)
from vit.tables import resolve, rows
from vit.training.callbacks.stopping import Patience
from vit.training.network_training import ADAMW, NetworkTraining, build_optimizer
from vit.training.optimizers.param_groups import param_groups
from vit.weights.identity import identity
from vit.yaml_reader import flat, load_yaml

Module = NetworkTraining[Any, Any]

PARSER: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False, "parser_mode": "vit"}
"""Arguments of every parser of options."""
jsonargparse.set_loader("vit", partial(load_yaml, source="an option"), (UserError,))
SEEDS = Range("from 0 to 4294967295", lambda seed: 0 <= seed < 2**32)


class Options:
    """Parsed options; `config` becomes config.yaml. UserError for a mistake.

    `own`: objects of a Python program by the names `images`, `callbacks` and `augment`, of which
    config.yaml has only the names.
    """

    def __init__(self, args: list[str] | Words, **own: Any) -> None:
        quiet_lightning()
        self.words = words = args if isinstance(args, Words) else Words(args)
        self.own = {name: value for name, value in own.items() if value}
        self.recipe = words.recipes[-1] if words.recipes else None
        if not words.recipes and words.run is None:
            self._choose_recipe()
        self.looked: ImageData | None = None
        self.recipes = words.layers
        self.module_class = task_of(words.values.get("task", "classification"))
        _check_words(words)
        # Recipes may name classes and functions in a file here, and the path of a command lacks
        # this folder. At the end, so that no file here takes the place of a library.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        # Reading attribute docstrings takes jsonargparse half a second; only --help-all needs it.
        with_texts = "help" in words.typed
        jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=with_texts)
        self.parser = _parser(self.module_class)
        self.resolve()

    def _choose_recipe(self) -> None:
        """Says which recipe a run without one has. UserError where it must have its own."""
        task, resume = self.words.typed.get("task"), self.words.typed.get("resume")
        if task is not None and not task_of(task).labelled:
            raise UserError(
                f"--task {task} needs a recipe: -c pretrain/..., or your own (`vit recipes` lists "
                "them)"
            )
        if resume not in (None, "auto", "never"):
            raise UserError(f"--resume {resume} is neither a run nor a checkpoint of one")
        say(f"recipe {DEFAULT_RECIPE} (-c names another, `vit recipes` lists them)")
        self.recipe = DEFAULT_RECIPE

    def resolve(self) -> None:
        """Parses the options, builds their values, and completes them by what the weights say, so
        that wrong ones are found before data is read."""
        with explaining(self.parser):
            self.config = config = self._parsed()
            check_range("seed_everything", config.seed_everything, SEEDS)
            seed_everything(config.seed_everything, workers=True)
            check_arguments(config.trainer)
            self.batch_trial = settle_batch(config, self.recipes, self.words.run)
            values = config.clone()
            values.trainer.pop("logger")  # which `loggers` builds, for a folder
            self._built = self.parser.instantiate(values)
            self._check_ranges()
            self._check_source()
            if config.model.pretrained is not None:
                self._follow_weights()
        if config.trainer.precision is None:
            precision, reason = default_precision(config.trainer.accelerator or "auto")
            say(f"precision {precision}: {reason} (--trainer.precision)")
            config.trainer.precision = self._built.trainer.precision = precision

    def _parsed(self) -> Namespace:
        """The options: of what is below the recipes, of these, and of the words."""
        words, (run, data) = self.words, followed(self.words)
        layers: list[dict[str, Any]] = [{f"data.{name}": value for name, value in data.items()}]
        layers += _with_architectures(self.recipes)
        chosen = {"model.optimizer", "model.optimizer.class_path"} & words.values.keys()
        if "model.optimizer.lr" in words.typed and not chosen:
            optimizer = {"class_path": "torch.optim.AdamW", "init_args": ADAMW}
            layers.append({"model": {"optimizer": optimizer}})
        texts = (json.dumps(layer, default=str, ensure_ascii=False) for layer in layers)
        arguments = [f"--config={text}" for text in texts]  # JSON is YAML
        arguments += [each for word in words.long for each in with_logger(word)]
        config, usual = self.parser.parse_args(arguments), self.parser.get_defaults().data
        if taken := [name for name in data if config.data[name] != usual[name]]:
            values = ", ".join(f"data.{name} {config.data[name]}" for name in taken)
            note(f"as in {run}, whose images these are: {values}")
        return config

    def _check_ranges(self) -> None:
        """UserError for what Lightning and torch refuse, and values refuse of each other."""
        config, built = self.config, self._built
        weight = nn.Parameter(torch.zeros(1, 1))
        build_optimizer(built.model.optimizer, param_groups([("head.weight", weight)], depth=0))
        if built.data.pseudo is not None:
            built.data.pseudo.check_loss(config.model.get("loss.kind"))
        if "augment" in self.own:
            built.data.augment = replace(built.data.augment, extra=self.own["augment"])

    def _check_source(self) -> None:
        """UserError without images, or for two sets of them."""
        data, built, typed = self.config.data, self._built.data, self.words.typed
        named = [name for name in ("dataset", "root") if f"data.{name}" in typed]
        sets = [f"data.{name}={data[name]}" for name in named if data[name] is not None]
        sets += ["data"] if "images" in self.own else []
        if not self.own and not named:
            check_given(self.config.own, "images", "callbacks", "augment")
        if "images" in self.own:
            data.dataset = data.root = built.dataset = built.root = None
        else:
            check_source(data.dataset, data.root)
        if len(sets) > 1:
            raise UserError(f"{' and '.join(sets)} are two sets of images; give one")

    def _follow_weights(self) -> None:
        """Takes from the weights what is open. Images are looked at before these are fetched."""
        model = self.config.model
        model.pretrained = self._built.model.pretrained = os.path.expanduser(model.pretrained)
        if not os.path.exists(model.pretrained):
            self.looked = self._data().look()
        fill_from_weights(self.config, self._built)

    @cached_property
    def data(self) -> ImageData:
        """The data module; its images are found at first use."""
        return self._data().unseen_by(known_by(self.config.model.pretrained))

    def _data(self) -> ImageData:
        data = ImageData(**self._built.data, own=self.own.get("images"))
        return data.read_as(labelled=self.module_class.labelled)

    def build_model(self, data: ImageData) -> Module:
        """Module with the classes, image size and preprocessing of the data."""
        module_class: Any = self.module_class  # each has arguments of its own
        return module_class(**self._built.model, facts=data.facts)

    @property
    def trainer(self) -> dict[str, Any]:
        """Arguments of the Trainer, except those that a run adds to."""
        added = ("callbacks", "logger", "plugins")
        return {k: v for k, v in vars(self._built.trainer).items() if k not in added}

    def listed(self, name: Literal["callbacks", "plugins"]) -> list[Any]:
        """The recipe's list under trainer.`name`."""
        return [*_as_list(self._built.trainer.get(name)), *self.own.get(name, ())]

    def loggers(self, folder: Path) -> list[Any]:
        """Loggers of the recipe; those given by name write into the folder."""
        config = Namespace(trainer=Namespace(logger=self.config.clone().trainer.logger))
        for entry in _as_list(config.trainer.logger):
            arguments = entry.get("init_args") or {}
            if arguments.get("save_dir") == RUN_DIRECTORY:
                arguments["save_dir"] = str(folder)
        with explaining(self.parser):
            return _as_list(self.parser.instantiate(config).trainer.logger)

    def early_stopping(self, data: ImageData, monitor: str) -> list[Patience]:
        """The callback of --patience. UserError without validation images."""
        patience = self.config.patience
        if patience is None:
            return []
        if data.splits.val is None or self.config.trainer.limit_val_batches == 0:
            raise UserError(
                f"patience={patience} needs validation images, which this run does not have; leave "
                "it out, or raise --data.splits.val_fraction"
            )
        mode = "min" if "loss" in monitor else "max"
        return [Patience(monitor, patience=int(patience), mode=mode)]

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
        hidden = {"own": [*self.own], "weights": self.weights}  # JSON is YAML
        return text + "".join(f"{n}: {json.dumps(v)}\n" for n, v in hidden.items() if v)

    @cached_property
    def weights(self) -> dict[str, str]:
        """The `identity` of the weights that each of these options names."""
        names = ("model.pretrained", f"model.{TEACHER}")
        return {n: identity(path) for n in names if (path := self.config.get(n)) is not None}

    def continuing(self, folder: Path) -> str:
        """How the run in `folder` is continued."""
        if self.own:
            return f"the same call of vit.fit with run_dir={str(folder)!r} continues it"
        return f"vit fit --run_dir {shlex.quote(str(folder))} continues it"

    def recorded(self) -> dict[str, Any]:
        """The content of config.yaml, in JSON types."""
        return load_yaml(self.recorded_text(), "the options")


def _parser(module_class: type[Module]) -> LightningArgumentParser:
    parser = LightningArgumentParser(prog="vit fit", **PARSER)
    add = parser.add_argument
    add("-c", "--config", action=ActionConfigFile, help="A recipe: its name, or a file.")
    add("--seed_everything", type=int, default=0, help="Seed of all draws.")
    settings: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "sub_configs": True}
    parser.add_class_arguments(Trainer, "trainer", skip={*SET_HERE}, **settings)
    parser.add_class_arguments(module_class, "model", skip={"facts"}, **settings)
    parser.add_class_arguments(ImageData, "data", skip={"own"}, **settings)
    other = {"num_sanity_val_steps": 0, "enable_model_summary": False, "log_every_n_steps": 10}
    parser.set_defaults({f"trainer.{name}": value for name, value in other.items()})
    text = "classification; or masked_patches, mae or autoregressive, which need no labels."
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


def _as_list(value: Any) -> list[Any]:
    return [] if value in (None, True, False) else value if isinstance(value, list) else [value]


def task_of(name: Any) -> type[Module]:
    """The module that is trained by that task; it decides which options there are."""
    task, tasks = str(name), rows("tasks")
    if task not in tasks:
        raise UserError(f"unknown task {task!r}{did_you_mean(task, tasks)}; choose {[*tasks]}")
    return resolve(tasks[task])


def _check_words(words: Words) -> None:
    """UserError for a typed --model.name beside sizes from a recipe, and for a rate or a length
    beside a recipe that takes no step."""
    fields = [name for name in words.values if name.startswith("model.architecture.")]
    sizes = {name.split(".")[2] for name in fields} & {"width", "depth", "num_heads", "mlp_dim"}
    with_fields = any(name.startswith("model.architecture") for name in words.typed)
    if "model.name" in words.typed and sizes and not with_fields:
        raise UserError(
            f"--model.name beside the recipe's own {', '.join(sorted(sizes))} would change the "
            "name alone; add --model.architecture null, or sizes"
        )
    entries = [e for e in _as_list(words.values.get("trainer.callbacks")) if isinstance(e, dict)]
    of_steps = re.compile(
        r"trainer\.max_(epochs|steps)|model\.(optimizer|schedule|mixing)\b.*|"
        r"model\.loss\.(?!class_weights).*|data\.augment\b.*"
    )
    useless = sorted(
        n for option in filter(of_steps.fullmatch, words.named) for n in words.named[option]
    )
    if useless and any(dict(flat(entry)).get("init_args.alone") for entry in entries):
        raise UserError(
            f"{useless[0]} has no effect: the recipe fits a head in closed form and takes no "
            "step; leave it out, or choose -c finetune"
        )


def _with_architectures(recipes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The recipes, each with the fields of the architecture of those before it, since the last one
    that names a model; the parser would take its own alone."""
    fields: dict[str, Any] | None = None
    for recipe in recipes:
        model = recipe.get("model")
        if isinstance(model, dict) and "architecture" in model:
            changes, before = model["architecture"], {} if "name" in model else fields or {}
            fields = None if changes is None else changed(before, changes)
            recipe = {**recipe, "model": {**model, "architecture": fields}}
        yield recipe
