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
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import torch
import yaml
from jsonargparse import ActionConfigFile, ArgumentError, Namespace  # pyright: ignore
from jsonargparse.typing import NonNegativeFloat, PositiveInt, restricted_number_type
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn

from vit.console import say
from vit.data.find import check_source
from vit.data.module import ImageData
from vit.errors import UserError, did_you_mean
from vit.hardware import default_precision
from vit.inference.lineage import known_by
from vit.models.fields import changed
from vit.recipes import DEFAULT_RECIPE, find_recipe
from vit.runs.batch import settle_batch
from vit.runs.following import fill_from_weights, parsed
from vit.runs.mistakes import check_given, explained, flat
from vit.runs.short_names import written_out
from vit.runs.trainer import (
    RUN_DIRECTORY,
    SET_HERE,
    build_trainer,
    check_arguments,
    logger_arguments,
    quiet_lightning,
)
from vit.tables import resolve, rows
from vit.training.callbacks import Patience
from vit.training.network_training import (
    ADAMW,
    OF_DATA,
    NetworkTraining,
    build_optimizer,
)
from vit.training.optimizers.param_groups import param_groups
from vit.weights.identity import identity
from vit.yaml_reader import load_yaml, quoted_keys, read_recipe

Module = NetworkTraining[Any, Any]

PARSER: dict[str, Any] = {"exit_on_error": False, "allow_abbrev": False, "parser_mode": "vit"}
"""Arguments of every parser of options."""
jsonargparse.set_loader(
    "vit", lambda text: jsonargparse.get_loader("yaml")(quoted_keys(text)), (yaml.YAMLError,)
)
Seed = restricted_number_type("Seed", int, [(">=", 0), ("<=", 2**32 - 1)])


class Options:
    """Parsed options; `config` becomes config.yaml. UserError for a mistake.

    `own`: objects of a Python program by the names `images`, `callbacks` and `augment`, of which
    config.yaml has only the names.
    """

    def __init__(self, args: list[str], **own: Any) -> None:
        quiet_lightning()
        self.typed = args
        self.looked: ImageData | None = None
        self.own = {name: value for name, value in own.items() if value}
        args = written_out(args)
        first, rest = _known_first(args)
        self.recipe = first.config[-1] if first.config else None
        self._run_config = _config_of_run(first)
        files = [find_recipe(name) for name in first.config]
        if not files and self._run_config is not None:
            files = [self._run_config]
        if not files:
            if first.task is not None and not task_of(first.task).labelled:
                raise UserError(
                    f"--task {first.task} needs a recipe: -c pretrain/..., or your own (`vit "
                    "recipes` lists them)"
                )
            if first.resume not in (None, "auto", "never"):
                raise UserError(f"--resume {first.resume} is neither a run nor a checkpoint of one")
            say(f"recipe {DEFAULT_RECIPE} (-c names another, `vit recipes` lists them)")
            self.recipe, files = DEFAULT_RECIPE, [find_recipe(DEFAULT_RECIPE)]
        self.recipes = [read_recipe(path) for path in files]
        named = [recipe["task"] for recipe in self.recipes if "task" in recipe]
        typed = [] if first.task is None else [first.task]
        self.module_class = task_of(["classification", *named, *typed][-1])
        _check_name(rest, self.recipes)
        _check_steps(self.typed, self.recipes)
        self._goes_on = files == [self._run_config]
        self.args = [
            *(f"--config={path}" for path in files),
            *_architecture(self.recipes),
            *(f"--{k}={v}" for k, v in vars(first).items() if isinstance(v, str) and k != "logger"),
            *(logger_arguments(first.logger) if first.logger else ()),
            *_optimizer_of_lr(rest, self.recipes),
            *rest,
        ]
        # Recipes may name classes and functions in a file here. The path of a command lacks this
        # folder, and the parser reads a recipe in the recipe's. At the end, so that no file here
        # takes the place of a library.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        # Reading attribute docstrings takes jsonargparse half a second; only --help-all needs it.
        jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings="--help" in args)
        self.parser = _parser(self.module_class)
        self.resolve()

    def resolve(self) -> None:
        """Parses and completes the options, and builds their values, so that wrong ones are found
        before data is read."""
        try:
            self.config = parsed(self.parser, self.args, follows=not self._goes_on)
            seed_everything(self.config.seed_everything, workers=True)
            self._complete()
            self._built = self.parser.instantiate(self.config)
            if (pseudo := self._built.data.pseudo) is not None:
                pseudo.check_loss(self.config.model.get("loss.kind"))
        except (ArgumentError, TypeError, KeyError, ValueError, ImportError) as error:
            raise explained(self.parser, error) from error
        if "augment" in self.own:
            augment = replace(self._built.data.augment, extra=self.own["augment"])
            self._built.data.augment = augment

    def _complete(self) -> None:
        """Checks what the parser cannot, before weights are fetched, and fills what is open."""
        config = self.config
        check_arguments(config.trainer)
        data = config.data
        named = [n for n in ("dataset", "root") if f"--data.{n}" in _names_of(self.args)]
        sets = [f"data.{name}={data[name]}" for name in named if data[name] is not None]
        sets += ["data"] if "images" in self.own else []
        if not self.own and not named:
            check_given(config.own, "images", "callbacks", "augment")
        if "images" in self.own:
            data.dataset = data.root = None
        else:
            check_source(data.dataset, data.root)
        if len(sets) > 1:
            raise UserError(f"{' and '.join(sets)} are two sets of images; give one")
        if config.model.pretrained is not None:
            config.model.pretrained = os.path.expanduser(config.model.pretrained)
            built = self._check_values()
            if not os.path.exists(config.model.pretrained):  # before it is fetched
                self.looked = self._data_of(built).look()
            fill_from_weights(config)
        elif f"trainer.strategy={config.trainer.strategy}" in rows("values"):
            self._check_values()
        if config.trainer.precision is None:
            precision, reason = default_precision(config.trainer.accelerator or "auto")
            say(f"precision {precision}: {reason} (--trainer.precision)")
            config.trainer.precision = precision
        self.batch_trial = settle_batch(config, self.recipes, self._run_config)

    def _check_values(self) -> Namespace:
        """The values as objects. UserError for those that constructors refuse."""
        built = self.parser.instantiate(self.config)
        weight = nn.Parameter(torch.zeros(1, 1))
        build_optimizer(built.model.optimizer, param_groups([("head.weight", weight)], depth=0))
        names = ("accelerator", "devices", "num_nodes", "strategy", "precision")
        build_trainer(**{name: built.trainer[name] for name in names}, logger=False)
        return built

    @cached_property
    def data(self) -> ImageData:
        """The data module; its images are found at first use."""
        data = self._data_of(self._built)
        return data.unseen_by(known_by(self.config.model.pretrained))

    def _data_of(self, built: Namespace) -> ImageData:
        data = ImageData(**built.data, own=self.own.get("images"))
        return data.read_as(labelled=self.module_class.labelled)

    def build_model(self, data: ImageData) -> Module:
        """Module with the classes, image size and preprocessing of the data."""
        module_class: Any = self.module_class  # each has arguments of its own
        return module_class(**self._built.model, **data.model_arguments)

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
        config = self.config.clone()
        for entry in _as_list(config.trainer.logger):
            arguments = entry.get("init_args") or {}
            if arguments.get("save_dir") == RUN_DIRECTORY:
                arguments["save_dir"] = str(folder)
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
        places = [(config.data, "root"), (config.model, "pretrained")]
        if (distillation := config.model.get("loss.distillation")) is not None:
            places.append((distillation, "teacher"))
        if (pseudo := self._built.data.pseudo) is not None:
            places += [(config.data.pseudo.init_args, name) for name in pseudo.paths]
        for group, name in places:
            place = group[name] and os.path.abspath(os.path.expanduser(group[name]))
            if place and os.path.exists(place):  # not a name or the address of a hub
                group[name] = place  # so that the run can be scored from any directory
        text = self.parser.dump(config, skip_unset=False)  # without a hidden option
        hidden = {"own": [*self.own], "weights": self.weights}  # JSON is YAML
        return text + "".join(f"{n}: {json.dumps(v)}\n" for n, v in hidden.items() if v)

    @cached_property
    def weights(self) -> dict[str, str]:
        """The `identity` of the weights that each of these options names."""
        names = ("model.pretrained", "model.loss.distillation.teacher")
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
    add("--seed_everything", type=Seed, default=0, help="Seed of all draws.")
    settings: dict[str, Any] = {"instantiate": False, "fail_untyped": False, "sub_configs": True}
    parser.add_class_arguments(Trainer, "trainer", skip={*SET_HERE}, **settings)
    parser.add_class_arguments(module_class, "model", skip={*OF_DATA}, **settings)
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
    parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
    return parser


def _as_list(value: Any) -> list[Any]:
    return [] if value in (None, True, False) else value if isinstance(value, list) else [value]


def _known_first(args: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Options without which the others cannot be parsed, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-c", "--config", action="append", default=[])
    parser.add_argument("--trainer.logger", dest="logger")
    for name in ("task", "run_dir", "resume"):
        parser.add_argument(f"--{name}")
    try:
        return parser.parse_known_args(args)
    except argparse.ArgumentError as error:
        raise UserError(str(error)) from error


def _config_of_run(first: argparse.Namespace) -> Path | None:
    """config.yaml of the run that --run_dir or --resume names."""
    place = first.run_dir if first.resume in (None, "auto") else first.resume
    path = Path(place or ".").expanduser()
    run = path.parent.parent if path.suffix == ".ckpt" else path  # RUN/checkpoints/last.ckpt
    return run / "config.yaml" if place and (run / "config.yaml").is_file() else None


def task_of(name: Any) -> type[Module]:
    """The module that is trained by that task; it decides which options there are."""
    task, tasks = str(name), rows("tasks")
    if task not in tasks:
        raise UserError(f"unknown task {task!r}{did_you_mean(task, tasks)}; choose {[*tasks]}")
    return resolve(tasks[task])


def _check_name(typed: list[str], recipes: list[dict[str, Any]]) -> None:
    """UserError for a typed --model.name beside sizes from a recipe."""
    names = _names_of(typed)
    given = [(recipe.get("model") or {}).get("architecture") or {} for recipe in recipes]
    sizes = {name for sizes in given for name in sizes} & {"width", "depth", "num_heads", "mlp_dim"}
    changed = any(name.startswith("--model.architecture") for name in names)
    if "--model.name" in names and sizes and not changed:
        raise UserError(
            f"--model.name beside the recipe's own {', '.join(sorted(sizes))} would change the "
            "name alone; add --model.architecture null, or sizes"
        )


def _check_steps(typed: list[str], recipes: list[dict[str, Any]]) -> None:
    """UserError for a rate or a length beside a recipe that takes no step."""
    lists = [_as_list((recipe.get("trainer") or {}).get("callbacks")) for recipe in recipes]
    entries = [entry for each in lists for entry in each if isinstance(entry, dict)]
    alone = any(dict(flat(entry)).get("init_args.alone") for entry in entries)
    of_steps = re.compile(
        r"--(lr|epochs|steps|trainer\.max_(epochs|steps)|model\.(optimizer|schedule|mixing)\b.*|"
        r"model\.loss\.(?!class_weights).*|data\.augment\b.*)"
    )
    if alone and (given := sorted(filter(of_steps.fullmatch, _names_of(typed)))):
        raise UserError(
            f"{given[0]} has no effect: the recipe fits a head in closed form and takes no step; "
            "leave it out, or choose -c finetune"
        )


def _architecture(recipes: list[dict[str, Any]]) -> list[str]:
    """The fields of all recipes, in order, since the last one that names a model; the parser would
    take those of the last one alone."""
    models = [recipe.get("model") or {} for recipe in recipes]
    given = [model for model in models if "architecture" in model]
    if len(given) < 2:
        return []
    fields: dict[str, Any] | None = {}
    for model in given:
        changes, before = model["architecture"], {} if "name" in model else fields or {}
        fields = None if changes is None else changed(before, changes)
    return [f"--model.architecture={json.dumps(fields)}"]


def _names_of(args: list[str]) -> set[str]:
    return {arg.partition("=")[0] for arg in args if arg.startswith("--")}


def _optimizer_of_lr(typed: list[str], recipes: list[dict[str, Any]]) -> list[str]:
    """The default optimizer for a typed learning rate, if nothing else chooses one."""
    chosen = any((recipe.get("model") or {}).get("optimizer") for recipe in recipes)
    names = _names_of(typed)
    if chosen or "--model.optimizer" in names or "--model.optimizer.lr" not in names:
        return []
    arguments = [f"--model.optimizer.{k}={json.dumps(v)}" for k, v in ADAMW.items() if k != "lr"]
    return ["--model.optimizer=torch.optim.AdamW", *arguments]
