"""`--trainer.logger tensorboard`, `wandb` or `mlflow`: experiment trackers by name."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vit.errors import UserError

_OPTION = "--trainer.logger"
_HERE = "RUN_DIRECTORY"
"""Stands for the run directory until it is known."""
_MODULE = "lightning.pytorch.loggers"

# Name, which is also that of the extra -> (packages of which one is needed, class, arguments).
LOGGERS: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
    "tensorboard": (
        ("tensorboard", "tensorboardX"),
        "TensorBoardLogger",
        {"save_dir": _HERE, "name": "tensorboard", "version": "events"},
    ),
    "wandb": (("wandb",), "WandbLogger", {"save_dir": _HERE, "project": "vit"}),
    "mlflow": (
        ("mlflow", "mlflow_skinny"),
        "MLFlowLogger",
        {"save_dir": _HERE, "experiment_name": "vit"},
    ),
}


def named_loggers(args: Sequence[str]) -> list[str]:
    """Arguments in which a name of `LOGGERS` has become its class and where it writes.

    Later arguments such as `--trainer.logger.project mine` still win. Raises UserError where its
    package is not installed.
    """
    replaced: list[str] = []
    waiting = False
    for arg in args:
        option, equals, value = arg.partition("=")
        if waiting and arg in LOGGERS:
            replaced[-1:] = _arguments(arg)
        elif option == _OPTION and equals and value in LOGGERS:
            replaced += _arguments(value)
        else:
            replaced.append(arg)
        waiting = arg == _OPTION
    return replaced


def _arguments(name: str) -> list[str]:
    packages, kind, arguments = LOGGERS[name]
    if not any(find_spec(package) for package in packages):
        raise UserError(
            f"{_OPTION} {name} needs the package {packages[0]}, which is not installed: "
            f"pip install 'vitkit[{name}]'"
        )
    return [
        f"{_OPTION}={_MODULE}.{kind}",
        *(f"{_OPTION}.{key}={value}" for key, value in arguments.items()),
    ]


def place_loggers(config: Any, run_dir: Path) -> None:
    """Lets loggers of a parsed configuration that were given by name write into the run."""
    logger = config.trainer.logger
    for entry in logger if isinstance(logger, list) else [logger]:
        arguments = getattr(entry, "init_args", None)
        if arguments is not None and arguments.get("save_dir") == _HERE:
            arguments["save_dir"] = str(run_dir)
