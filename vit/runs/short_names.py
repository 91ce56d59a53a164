"""The words of a command, read once: their options by long names, and what recipes add.

`--lr 1e-3 --epochs 5` is `--model.optimizer.lr 1e-3 --trainer.max_epochs 5 --trainer.max_steps -1`.
Imports nothing heavy: mistakes in names and in numbers of short ones are reported at once.
"""

import json
import re
import time
from functools import cached_property
from pathlib import Path

from vit.errors import UserError, did_you_mean
from vit.recipes import DEFAULT_RECIPE, find_recipe, flat, load_yaml, read_options
from vit.runs.records import Record, is_run, recorded_options
from vit.tables import rows

SHORT = {
    "data": "data.root",
    "pretrained": "model.pretrained",
    "arch": "model.name",
    "lr": "model.optimizer.lr",
    "epochs": "trainer.max_epochs trainer.max_steps",
    "steps": "trainer.max_steps trainer.max_epochs",
    "cooldown": "model.schedule.cooldown_steps",
    "batch_size": "data.batch_size",
    "image_size": "data.image_size",
    "devices": "trainer.devices",
    "seed": "seed_everything",
    "ckpt_path": "resume",
}
"""Short name -> option, and a limit that it switches off. `data` may also be a data set's name."""
NUMBERS = {"lr": 1e-3, "epochs": 10, "steps": 999, "batch_size": 32, "image_size": 224, "seed": 0}
"""Short name of a number -> an example."""
PART = "model.architecture.variant."
"""Begins the options of parts, which become one: the parser keeps the last of several."""
FLAGS = ("help", "help_all", "json", "print_config", "spreadsheet")
"""Options without a value."""
WITHOUT_DOT = (
    *("config", "final_split", "model", "out", "patience", "resume", "run_dir", "save_every"),
    *("seed_everything", "split", "task", "trainer", "with", *FLAGS, *rows("short_names")),
)
"""Other options without a dot, and those of the table of short names."""
LOGGERS = {
    "tensorboard": ("TensorBoardLogger", {"name": "tensorboard", "version": "events"}),
    "wandb": ("WandbLogger", {"project": "vit"}),
    "mlflow": ("MLFlowLogger", {"experiment_name": "vit"}),
}
"""Name of a package -> its class in Lightning, and arguments."""
RUN_DIRECTORY = "RUN_DIRECTORY"
"""Place of a logger until the run directory is known."""
YAML = (".yaml", ".yml")
"""Endings of files of options."""


class Words:
    """The words of a command of runs.

    `-` in the name of an option becomes `_`. UserError for an unknown name without a dot, for
    data that do not exist, and for two names that give an option different values.
    """

    def __init__(self, args: list[str]) -> None:
        self.args, self.began = args, time.monotonic()
        self.others: list[str] = []
        """Words that are no options, nor their values."""
        self.recipes: list[str] = []
        self.options: list[tuple[str, str | None]] = []
        """Options by their long names with their texts, in order; None for one without a value."""
        self.setters: dict[str, tuple[str, str, str]] = {}
        """Option -> the typed name that sets it, its text, and the text of the option."""
        parts: Record = {}
        left = [*args]
        while left:
            self._read(left, parts)
        if parts:
            self.options.append((PART[:-1], json.dumps(parts)))  # JSON is YAML
        self.typed = dict(self.options)
        """Option -> its last text."""

    def _read(self, left: list[str], parts: Record) -> None:
        """Takes the next option from `left`, with its value."""
        name, equals, value = (word := left.pop(0)).partition("=")
        if not name.startswith("--") and name != "-c":
            self.others.append(word)
            return
        head, dot, class_name = name[2:].partition("class_weights.")
        option = "config" if name == "-c" else head.replace("-", "_") + dot + class_name
        if "." not in option and option not in {*SHORT, *WITHOUT_DOT}:
            why = did_you_mean(option, [*SHORT, *WITHOUT_DOT]) or ": see `vit fit --help-all`"
            raise UserError(f"there is no option --{option}{why}")
        if option in FLAGS:
            self.options.append((option, value if equals else None))
            return
        if not equals and left and not left[0].startswith("--"):
            value, equals = left.pop(0), "="
        if not equals or (not value and option in {*SHORT, "config", "model"}):
            raise UserError(f"{name} needs a value")
        if option.startswith(PART):
            kind, dot, field = option.removeprefix(PART).partition(".")
            before, part = parts.get(kind), load_yaml(value, name)
            fields: Record = before if isinstance(before, dict) else {}  # pyright: ignore
            parts[kind] = {**fields, field: part} if dot else part
            return
        if option == "config":
            self.recipes.append(value)
            return
        for long, text in _long(option, value):
            one, typed, before = self.setters.get(long, (name, value, text))
            if one != name and load_yaml(before, one) != load_yaml(text, name):
                raise UserError(f"{one} {typed} and {name} {value} contradict each other; give one")
            self.options.append((long, text))
            self.setters[long] = name, value, text

    @property
    def long(self) -> list[str]:
        """The words by the long names of options, without recipes."""
        texts = (f"--{n}" if text is None else f"--{n}={text}" for n, text in self.options)
        return [*self.others, *texts]

    @property
    def written(self) -> list[str]:
        """The words by long names, recipes first."""
        return [*(word for name in self.recipes for word in ("-c", name)), *self.long]

    @cached_property
    def run(self) -> Path | None:
        """The run that --run_dir or --resume names. UserError for --resume with another path."""
        resume = self.typed.get("resume") or "auto"
        place = self.typed.get("run_dir") if resume == "auto" else resume
        if resume == "never" or not place:
            return None
        path = Path(place).expanduser()
        run = path.parent.parent if path.suffix == ".ckpt" else path  # RUN/checkpoints/last.ckpt
        if resume != "auto" and not is_run(run) and not (run != path and path.exists()):
            raise UserError(
                f"--resume {resume} is neither a run nor a checkpoint; weights to start from go to "
                "--model.pretrained"
            )
        return run if is_run(run) else None

    @cached_property
    def layers(self) -> list[Record]:
        """Options of the recipes; else of the run that goes on, or of the default recipe."""
        if not self.recipes and self.run is not None:
            return [recorded_options(self.run)]
        return [read_options(find_recipe(name)) for name in self.recipes or [DEFAULT_RECIPE]]

    @cached_property
    def values(self) -> Record:
        """Option -> value, by the last recipe or word that names it."""
        pairs = (pair for layer in (*self.layers, self.typed) for pair in flat(layer))
        return {name: None if value in ("", "null") else value for name, value in pairs}


def _long(option: str, value: str) -> list[tuple[str, str]]:
    """An option and its value by long names; both of them where a short name sets two."""
    if option == "model" and not value.endswith((*YAML, "}")):
        hint = f"type --pretrained {value} for these weights, or --arch NAME for random ones"
        raise UserError(f"--model {value}: {hint}")
    if option == "trainer.logger" and value in LOGGERS:
        kind, arguments = LOGGERS[value]
        arguments = {"save_dir": RUN_DIRECTORY, **arguments}
        places = [(f"{option}.{name}", text) for name, text in arguments.items()]
        return [(option, f"lightning.pytorch.loggers.{kind}"), *places]
    if option == "image_size" and re.fullmatch(r"\d+[x,]\d+", value):
        value = f"[{value.replace('x', ',')}]"
    if option == "data" and not value.endswith(YAML):
        from vit.data.catalog import data_set  # heavy: imports numpy

        name, root = data_set(value)
        if root is None:
            return [("data.dataset", name), ("data.root", "null")]
        return [("data.root", root)]
    if option in NUMBERS and isinstance(load_yaml(value, f"--{option}"), str | bool):
        if f"{SHORT[option]}={value}" not in rows("values"):  # such as auto
            example = f"--{option} {NUMBERS[option]}"
            raise UserError(f"--{option} {value} is not a number; type {example}")
    row = (SHORT | rows("short_names")).get("" if option == "data" else option)
    row, *limits = [option] if row is None else row.split()
    if limits and value.startswith("-"):
        raise UserError(f"--{option} {value} must be at least 1")
    field, _, argument = row.partition(":")
    kind, _, name = argument.rpartition(".")
    others = [(limit, "-1") for limit in limits if not argument or value != "null"]
    if argument and value != "null":
        return [(field, kind), (f"{field}.init_args.{name}", value), *others]
    return [(field, value), *others]
