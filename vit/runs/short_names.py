"""Short names of the options of a run, written out before anything reads them.

`--lr 1e-3 --epochs 5` is `--model.optimizer.lr 1e-3 --trainer.max_epochs 5 --trainer.max_steps -1`.
Imports nothing heavy: a mistake in a name, a recipe or a folder is reported at once.
"""

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

from vit.errors import AT_LEAST_ONE, NOT_NEGATIVE, Range, UserError, did_you_mean, shorten
from vit.recipes import DEFAULT_RECIPE, find_recipe
from vit.tables import rows
from vit.yaml_reader import load_yaml, read_options

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


def written_out(args: list[str]) -> list[str]:
    """The arguments of a run with the long names of its options.

    `-` in the name of an option becomes `_`. UserError for an unknown name without a dot, for a
    recipe, folder or architecture that does not exist, for a number that no run can have, for
    limits in epochs and in steps together, and for two spellings of an option that disagree.
    """
    if len([word for word in args if word.endswith(".tar")]) > 1:
        raise UserError("several shards: quote their pattern: --data 'DIR/train-{000..127}.tar'")
    long: list[str] = []
    parts: dict[str, Any] = {}
    typed: dict[str, dict[str, str]] = {}
    words, is_value = [*args], False
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("--") and name != "-c":
            if equals and not is_value and name in {*SHORT, *OTHER_WORDS, *WITHOUT_DOT}:
                raise UserError(f"{word!r} is not an option; type --{name} {value}")
            long.append(word)
            is_value = False
            continue
        is_value = not equals  # the next word, unless it is taken here
        option = "config" if name == "-c" else _underscored(name[2:])
        option = OTHER_WORDS.get(option, option)
        value = value if equals else words[0] if words else ""
        if option.startswith(PART):
            words, is_value = (words if equals else words[1:]), False
            kind, dot, name = option.removeprefix(PART).partition(".")
            fields = parts.get(kind) if isinstance(parts.get(kind), dict) else {}
            parts[kind] = {**(fields or {}), name: value} if dot else value
            continue
        is_file = option == "data" and value.endswith((".yaml", ".yml"))
        _note_typed(typed, "config" if is_file else SHORT.get(option, option), name, value)
        if option not in {*SHORT, *rows("short_names"), "config", "data.root", "model"}:
            if "." not in option and option not in WITHOUT_DOT:
                near = did_you_mean(option, [*SHORT, *OTHER_WORDS, *WITHOUT_DOT])
                raise UserError(f"there is no option --{option}{near or '; see `vit fit --help`'}")
            is_value &= option not in FLAGS
            long.append(word.replace(name, f"--{option}", 1))
            continue
        words, is_value = (words if equals else words[1:]), False
        if (not value and option != "data.root") or value.startswith("--"):
            raise UserError(f"{name} needs a value")
        long += _long(option, value)
    _check_limits(typed)
    return [*long, f"--{PART[:-1]}={_mapping(parts)}"] if parts else long


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


def check_size(args: list[str]) -> None:
    """UserError for an image size that the patches do not divide, where the name of the
    architecture or of weights says how large they are. `args`: those of `vit fit`, written out."""
    recipes = [name for word, name in pairwise(args) if word == "-c"]
    values = {name: value for name, _, value in (word.partition("=") for word in args)}
    size = load_yaml(values.get("--data.image_size", "null"), "--image-size")
    if size is None or any(name.startswith("--model.architecture") for name in values):
        return
    if not recipes and not {"--run_dir", "--resume"} & values.keys():
        recipes = [DEFAULT_RECIPE]
    model: dict[str, Any] = {}
    for recipe in recipes:
        options = read_options(find_recipe(recipe)).get("model")
        model |= options if isinstance(options, dict) else {}
    weights = values.get("--model.pretrained", model.get("pretrained"))
    name = values.get("--model.name", weights or model.get("name"))
    if isinstance(name, str) and name != "null" and not model.get("architecture"):
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


def _long(option: str, value: str) -> list[str]:
    if option == "config":
        find_recipe(value)
        return ["-c", value]
    if option == "data" and value.endswith((".yaml", ".yml")):
        return [f"--data={value}"]
    if option == "model":
        if not value.endswith((".yaml", ".yml", "}")):
            raise UserError(
                f"--model {value}: type --pretrained {value} to start from these weights, or "
                "--arch and a name of `vit models` for random ones"
            )
        return [f"--model={value}"]
    if option == "image_size" and re.fullmatch(r"\d+[x,]\d+", value):
        value = f"[{value.replace('x', ',')}]"
    if option == "data":
        from vit.data.catalog import data_set  # heavy: imports numpy

        name, root = data_set(value)
        given = [f"--data.dataset={name}", "--data.root=null"]
        return given if root is None else [f"--data.root={root}"]
    if option == "data.root":
        if value not in ("", "null") and not Path(value).expanduser().exists():
            from vit.data.roots import check_root  # heavy: imports numpy

            check_root(value)
        return [f"--data.root={value}"]
    if row := rows("short_names").get(option):
        field, _, argument = row.partition(":")
        kind, _, name = argument.rpartition(".")
        whole = [f"--{field}={kind}", f"--{field}.init_args.{name}={value}"]
        return [f"--{field}=null"] if value == "null" else whole
    other = [f"--{OTHER_LIMIT[option]}=-1"] if option in OTHER_LIMIT else []
    return [f"--{SHORT[option]}={value}", *other]
