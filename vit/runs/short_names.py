"""The words of a command, read once: their options by long names, and what recipes add.

`--lr 1e-3 --epochs 5` is `--model.optimizer.lr 1e-3 --trainer.max_epochs 5 --trainer.max_steps -1`.
Imports nothing heavy: a mistake in a name, a recipe or a folder is reported at once.
"""

import math
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from vit.errors import AT_LEAST_ONE, NOT_NEGATIVE, Range, UserError, did_you_mean, shorten
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
NUMBERS = {
    "data.batch_size": AT_LEAST_ONE,
    "data.image_size": AT_LEAST_ONE,
    "model.optimizer.lr": NOT_NEGATIVE,
    "seed_everything": Range("from 0 to 4294967295", lambda seed: 0 <= seed < 2**32),
    "trainer.max_epochs": AT_LEAST_ONE,
    "trainer.max_steps": NOT_NEGATIVE,
}
"""Options whose values are checked as they are typed; all but the learning rate are whole."""
FLAGS = ("help", "help_all", "json", "print_config", "spreadsheet")
"""Options without a value."""
WITHOUT_DOT = (
    *("config", "final_split", "help", "help_all", "json", "model", "out", "patience"),
    *("print_config", "resume", "run_dir", "save_every", "seed_everything", "split"),
    *("spreadsheet", "task", "trainer", "with"),
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

    `-` in the name of an option becomes `_`. UserError for an unknown name without a dot, for a
    recipe, folder or architecture that does not exist, for a number that no run can have, for
    limits in epochs and in steps together, and for two spellings of an option that disagree.
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
        self.named: dict[str, dict[str, str]] = {}
        """Option -> the names by which it is typed, with their texts."""
        parts: dict[str, Any] = {}
        left = [*args]
        while left:
            self._read(left, parts)
        _check_limits(self.named)
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
        is_file = option == "data" and value.endswith(YAML)
        _note_typed(self.named, "config" if is_file else SHORT.get(option, option), name, value)
        if option == "config":
            find_recipe(value)
            self.recipes.append(value)
        else:
            self.options += _long(option, value)

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


def _note_typed(typed: dict[str, dict[str, str]], option: str, name: str, value: str) -> None:
    """Adds the value to those of the option by the names that are typed; UserError if they
    disagree, or for a value that no run can have."""
    values = typed.setdefault(option, {})
    values[name] = value
    if len({_normal(option, each) for each in values.values()}) > 1 and option != "config":
        both = " and ".join(f"{name} {value}" for name, value in values.items())
        raise UserError(f"{both} are two spellings of one option; give one")
    unlimited = option in OTHER_LIMIT.values() and name == f"--{option}" and value == "-1"
    if value in ("", "null", "auto") or unlimited:
        return
    if option == "model.name":
        from vit.models.zoo import canonical_name
        from vit.weights.names import architecture_of, exact, means_weights

        if not means_weights(value) and (architecture_of(value) or exact(value)) is None:
            canonical_name(value)
    elif option in NUMBERS:
        numbers = _normal(option, value)
        if not all(math.isfinite(n) and NUMBERS[option].holds(n) for n in numbers):
            whole = "" if option == "model.optimizer.lr" else "whole "
            rule = f"a {whole}number, {NUMBERS[option].text}"
            raise UserError(f"{name} {shorten(value)} must be {rule}")


def _normal(option: str, value: str) -> Any:
    """What equal values of an option have in common: numbers, of which NaN is none, or a path."""
    if option in NUMBERS:
        sides = re.split("[x,]", value.strip("[]")) if option == "data.image_size" else [value]
        number = float if option == "model.optimizer.lr" else int
        try:
            return tuple(number(side) for side in sides)
        except ValueError:
            return value if value in ("", "null", "auto") else (math.nan,)
    return os.path.normpath(value) if option in ("data.root", "model.pretrained") else value


def _check_limits(typed: dict[str, dict[str, str]]) -> None:
    """UserError for a short name of a limit beside the other limit, which it switches off."""
    limits = [typed.get(option, {}) for option in OTHER_LIMIT.values()]
    limits = [{n: v for n, v in names.items() if v not in ("-1", "null")} for names in limits]
    given = [f"{name} {value}" for names in limits for name, value in names.items()]
    if all(limits) and OTHER_LIMIT.keys() & {name.split()[0][2:] for name in given}:
        raise UserError(f"{' and '.join(given[::-1])} are two limits; give one")


def check_size(words: Words) -> None:
    """UserError for an image size that the patches do not divide, where the name of the
    architecture or of weights says how large they are."""
    size = load_yaml(words.typed.get("data.image_size") or "null", "--image-size")
    if size is None or any(name.startswith("model.architecture") for name in words.values):
        return
    weights, usual = words.values.get("model.pretrained"), words.values.get("model.name")
    name = words.typed.get("model.name", weights or usual)
    if isinstance(name, str) and name != "null":
        from vit.models.zoo import model_config
        from vit.weights.names import architecture_of, named

        architecture = architecture_of(name)
        if architecture is None and (row := named(name)) is not None:
            architecture = row.architecture
        if architecture is not None:
            model_config(architecture, image_size=size)


def _mapping(values: dict[str, Any]) -> str:
    """YAML of values that are YAML themselves."""
    pairs = (f"{k}: {_mapping(v) if isinstance(v, dict) else v}" for k, v in values.items())
    return f"{{{', '.join(pairs)}}}"


def _underscored(option: str) -> str:
    """`-` becomes `_`, but not in the names of classes."""
    head, dot, name = option.replace("class-weights.", "class_weights.").partition("class_weights.")
    return head.replace("-", "_") + dot + name


def _long(option: str, value: str) -> list[tuple[str, str | None]]:
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
    place = Path(value).expanduser()
    if option == "data.root" and value not in ("", "null") and not place.exists():
        from vit.data.roots import check_root  # heavy: imports numpy

        check_root(value)
    if row := rows("short_names").get(option):
        field, _, argument = row.partition(":")
        kind, _, name = argument.rpartition(".")
        whole = [(field, kind), (f"{field}.init_args.{name}", value)]
        return [(field, "null")] if value == "null" else [*whole]
    other = [(OTHER_LIMIT[option], "-1")] if option in OTHER_LIMIT else []
    return [("data" if option == "data" else SHORT.get(option, option), value), *other]
