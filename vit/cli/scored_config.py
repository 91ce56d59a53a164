"""What an evaluation reads of a run's config.yaml: the data, the task, and how scores are counted.

A run directory may come from somebody else. Callbacks, loggers, plugins, the optimizer and whatever
else names a class to import stay out; a class that is still named must be of this package or
imported already, and is looked at before anything is imported.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit.errors import UserError

# Options of the Trainer that say where and how exactly a model is evaluated.
_TRAINER = (
    "accelerator",
    "devices",
    "num_nodes",
    "precision",
    "deterministic",
    "benchmark",
    "limit_val_batches",
    "limit_test_batches",
    "limit_predict_batches",
)
# Options of the model that decide what its loss is or which parts it has.
_MODEL = ("loss", "target", "fraction", "compile")
_WORDS = bool | int | float | str | None


def scored_config(content: dict[str, Any], file: Path) -> dict[str, Any]:
    """The part of a run's configuration that an evaluation uses.

    Raises UserError where it names a class of another package; `file` is named in the message.
    """
    trainer, model = _mapping(content, "trainer"), _mapping(content, "model")
    config = {
        name: content[name] for name in ("task", "seed_everything", "routes") if name in content
    }
    config["data"] = _mapping(content, "data")
    config["trainer"] = {
        name: trainer[name]
        for name in _TRAINER
        if name in trainer and isinstance(trainer[name], _WORDS)
    }
    config["model"] = {name: model[name] for name in _MODEL if name in model}
    loss = config["model"].get("loss")
    if isinstance(loss, dict):  # a teacher takes part in training alone
        config["model"]["loss"] = {k: v for k, v in loss.items() if k != "distillation"}
    for key, path in _class_paths(config):
        if not _is_known(path):
            raise UserError(
                f"{file}: {key} names {path}, a class outside this package; scoring a run imports "
                "nothing from its directory"
            )
    return config


def _mapping(content: dict[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _class_paths(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every class_path, with the option that it stands under."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "class_path":
                yield key, str(inner)
            else:
                yield from _class_paths(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _class_paths(inner, key)


def _is_known(path: str) -> bool:
    module = path.rpartition(".")[0]
    return module == "vit" or module.startswith("vit.") or module in sys.modules
