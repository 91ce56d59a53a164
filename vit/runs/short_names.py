"""Short names of the options of a run, written out before anything reads them.

`--lr 1e-3 --epochs 5` is `--model.optimizer.lr 1e-3 --trainer.max_epochs 5 --trainer.max_steps -1`.
Imports nothing heavy: a mistake in a name, a recipe or a folder is reported at once.
"""

import re
from pathlib import Path
from typing import Any

from vit.errors import UserError, did_you_mean
from vit.recipes import find_recipe

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
    recipe or folder that does not exist, and for limits in epochs and in steps together.
    """
    if len([word for word in args if word.endswith(".tar")]) > 1:
        raise UserError("several shards: quote their pattern: --data 'DIR/train-{000..127}.tar'")
    long: list[str] = []
    parts: dict[str, Any] = {}
    typed: dict[str, str] = {}
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--") and name != "-c":
            long.append(word)
            continue
        option = "config" if name == "-c" else _underscored(name[2:])
        option = OTHER_WORDS.get(option, option)
        if option.startswith(PART):
            kind, dot, name = option.removeprefix(PART).partition(".")
            value = value if equals else next(words, "")
            fields = parts.get(kind) if isinstance(parts.get(kind), dict) else {}
            parts[kind] = {**(fields or {}), name: value} if dot else value
            continue
        if option not in SHORT and option not in ("config", "data.root", "model"):
            if "." not in option and option not in WITHOUT_DOT:
                near = did_you_mean(option, [*SHORT, *OTHER_WORDS, *WITHOUT_DOT])
                raise UserError(f"there is no option --{option}{near or '; see `vit fit --help`'}")
            long.append(f"--{option}{equals}{value}")
            continue
        typed[option] = value = value if equals else next(words, "")
        if (not value and option != "data.root") or value.startswith("--"):
            raise UserError(f"{name} needs a value")
        long += _long(option, value)
    if OTHER_LIMIT.keys() <= typed.keys():
        limits = f"--epochs {typed['epochs']} and --steps {typed['steps']}"
        raise UserError(f"{limits} are two limits; give one")
    return [*long, f"--{PART[:-1]}={_mapping(parts)}"] if parts else long


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
    if option == "image_size" and re.fullmatch(r"\d+x\d+", value):
        value = f"[{value.replace('x', ',')}]"
    if option == "data":
        from vit.data.catalog import data_set  # heavy: imports numpy

        name, root = data_set(value)
        given = [f"--data.dataset={name}", "--data.root=null"]
        return given if root is None else [f"--data.root={root}"]
    if option == "data.root":
        if value not in ("", "null") and not Path(value).expanduser().exists():
            from vit.data.addresses import check_root  # heavy: imports numpy

            check_root(value)
        return [f"--data.root={value}"]
    other = [f"--{OTHER_LIMIT[option]}=-1"] if option in OTHER_LIMIT else []
    return [f"--{SHORT[option]}={value}", *other]
