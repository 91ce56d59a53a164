"""The words of a command, read once: their options by long names, and what recipes add.

`--lr 1e-3 --epochs 5` is `--model.optimizer.lr 1e-3 --trainer.max_epochs 5 --trainer.max_steps -1`.
Imports nothing heavy: a mistake in a name is reported at once. Values are left to their types and
constructors.
"""

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from vit.errors import UserError, did_you_mean
from vit.recipes import DEFAULT_RECIPE, find_recipe
from vit.tables import rows
from vit.yaml_reader import flat, load_yaml, read_options

SHORT = {
    "data": "data.root",
    "pretrained": "model.pretrained",
    "arch": "model.name",
    "lr": "model.optimizer.lr",
    "epochs": "trainer.max_epochs",
    "steps": "trainer.max_steps",
    "batch_size": "data.batch_size",
    "image_size": "data.image_size",
    "devices": "trainer.devices",
    "seed": "seed_everything",
    "ckpt_path": "resume",
}
"""Short name -> option. `data` may also be a data set's name, or a YAML file of options."""
OTHER_LIMIT = {"epochs": "trainer.max_steps", "steps": "trainer.max_epochs"}
"""The limit that a short one switches off."""
PART = "model.architecture.variant."
"""Begins the options of parts, which become one: the parser keeps the last of several."""
FLAGS = ("help", "help_all", "json", "print_config", "spreadsheet")
"""Options without a value."""
WITHOUT_DOT = (
    *("config", "final_split", "model", "out", "patience", "resume", "run_dir", "save_every"),
    *("seed_everything", "split", "task", "trainer", "with", *FLAGS),
)
"""Other options without a dot."""
OTHER_WORDS = {
    "batch": "batch_size",
    "data_dir": "data",
    "data_path": "data",
    "img_size": "image_size",
    "imgsz": "image_size",
    "learning_rate": "lr",
    "model_name": "arch",
    "num_train_epochs": "epochs",
    "output_dir": "run_dir",
    "weight_decay": "model.optimizer.weight_decay",
    "weights": "pretrained",
    "workers": "data.loading.num_workers",
}
"""What timm, ultralytics, transformers and Lightning call an option -> its name here."""
YAML = (".yaml", ".yml")
"""Endings of files of options."""


class Words:
    """The words of a command of runs.

    `-` in the name of an option becomes `_`. UserError for an unknown name without a dot, for
    data that do not exist, and for two names that give an option different values.
    """

    def __init__(self, args: list[str]) -> None:
        self.args = args
        self.others: list[str] = []
        """Words that are no options, nor their values."""
        self.recipes: list[str] = []
        self.options: list[tuple[str, str | None]] = []
        """Options by their long names with their texts, in order; None for one without a value."""
        if len([word for word in args if word.endswith(".tar")]) > 1:
            raise UserError(
                "several shards: quote their pattern: --data 'DIR/train-{000..127}.tar'"
            )
        self.named: dict[str, dict[str, tuple[str, str]]] = {}
        """Option -> the typed names that set it, each with its text and with that of the option."""
        parts: dict[str, Any] = {}
        left = [*args]
        while left:
            self._read(left, parts)
        _check_agreement(self.named)
        if parts:
            self.options.append((PART[:-1], _mapping(parts)))
        self.typed = dict(self.options)
        """Option -> its last text."""

    def _read(self, left: list[str], parts: dict[str, Any]) -> None:
        """Takes the next option from `left`, with its value."""
        name, equals, value = (word := left.pop(0)).partition("=")
        if not name.startswith("--") and name != "-c":
            if equals and name in {*SHORT, *OTHER_WORDS, *WITHOUT_DOT}:
                raise UserError(f"{word!r} is not an option; type --{name} {value}")
            self.others.append(word)
            return
        option = "config" if name == "-c" else _underscored(name[2:])
        option = OTHER_WORDS.get(option, option)
        if "." not in option and option not in {*SHORT, *WITHOUT_DOT}:
            near = did_you_mean(option, [*SHORT, *OTHER_WORDS, *WITHOUT_DOT])
            raise UserError(f"there is no option --{option}{near or '; see `vit fit --help`'}")
        if option in FLAGS:
            self.options.append((option, value if equals else None))
            return
        if not equals and left and not left[0].startswith("--"):
            value, equals = left.pop(0), "="
        if not equals or (not value and option in {*SHORT, "config", "model"}):
            raise UserError(f"{name} needs a value")
        if option.startswith(PART):
            kind, dot, field = option.removeprefix(PART).partition(".")
            fields = parts.get(kind) if isinstance(parts.get(kind), dict) else {}
            parts[kind] = {**(fields or {}), field: value} if dot else value
            return
        if option == "config":
            self.recipes.append(value)
            return
        for long, text in _long(option, value):
            self.options.append((long, text))
            self.named.setdefault(long, {})[name] = value, text

    @property
    def long(self) -> list[str]:
        """The words with the long names of options, without recipes."""
        texts = (f"--{n}" if text is None else f"--{n}={text}" for n, text in self.options)
        return [*self.others, *texts]

    @property
    def written(self) -> list[str]:
        """All of them, recipes first."""
        return [*(word for name in self.recipes for word in ("-c", name)), *self.long]

    @cached_property
    def run(self) -> Path | None:
        """config.yaml of the run that --run_dir or --resume names."""
        resume = self.typed.get("resume")
        place = self.typed.get("run_dir") if resume in (None, "auto") else resume
        path = Path(place or ".").expanduser()
        run = path.parent.parent if path.suffix == ".ckpt" else path  # RUN/checkpoints/last.ckpt
        return run / "config.yaml" if place and (run / "config.yaml").is_file() else None

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """Options of the recipes; else of the run that goes on, or of the default recipe."""
        if not self.recipes and self.run is not None:
            return [read_options(self.run)]
        return [read_options(find_recipe(name)) for name in self.recipes or [DEFAULT_RECIPE]]

    @cached_property
    def values(self) -> dict[str, Any]:
        """Option -> value, by the last recipe or word that names it."""
        values: dict[str, Any] = {}
        for layer in self.layers:
            values |= flat(layer)
        values |= self.typed
        return {n: None if value in ("", "null") else value for n, value in values.items()}


def _check_agreement(named: dict[str, dict[str, tuple[str, str]]]) -> None:
    """UserError for names that give an option different values; --epochs and --steps are such."""
    for names in named.values():
        values = [_meaning(text) for _, text in names.values()] if len(names) > 1 else []
        if any(value != values[0] for value in values):
            both = " and ".join(f"{name} {text}" for name, (text, _) in names.items())
            raise UserError(f"{both} contradict each other; give one")


def _meaning(text: str) -> Any:
    """The value of a text, which is the same for several texts of a number or a path."""
    value = load_yaml(text, "an option")
    return os.path.normpath(value) if isinstance(value, str) else value


def _mapping(values: dict[str, Any]) -> str:
    """YAML of values that are YAML themselves."""
    pairs = (f"{k}: {_mapping(v) if isinstance(v, dict) else v}" for k, v in values.items())
    return f"{{{', '.join(pairs)}}}"


def _underscored(option: str) -> str:
    """`-` becomes `_`, but not in the names of classes."""
    head, dot, name = option.replace("class-weights.", "class_weights.").partition("class_weights.")
    return head.replace("-", "_") + dot + name


def _long(option: str, value: str) -> list[tuple[str, str]]:
    """An option and its value by long names; both of them where a short name sets two."""
    if option == "model" and not value.endswith((*YAML, "}")):
        raise UserError(
            f"--model {value}: type --pretrained {value} to start from these weights, or "
            "--arch and a name of `vit models` for random ones"
        )
    if option == "image_size" and re.fullmatch(r"\d+[x,]\d+", value):
        value = f"[{value.replace('x', ',')}]"
    if option == "data" and not value.endswith(YAML):
        from vit.data.catalog import data_set  # heavy: imports numpy

        name, root = data_set(value)
        if root is None:
            return [("data.dataset", name), ("data.root", "null")]
        return [("data.root", root)]
    if row := rows("short_names").get(option):
        field, _, argument = row.partition(":")
        kind, _, name = argument.rpartition(".")
        if value == "null":
            return [(field, "null")]
        return [(field, kind), (f"{field}.init_args.{name}", value)]
    other = [(OTHER_LIMIT[option], "-1")] if option in OTHER_LIMIT else []
    return [("data" if option == "data" else SHORT.get(option, option), value), *other]
