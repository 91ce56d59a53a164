"""`--trainer.logger tensorboard`, `wandb` or `mlflow`: experiment trackers by name."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vit.errors import UserError

_HERE = "RUN_DIRECTORY"
"""Stands for the run directory until it is known."""

# Name, which is also that of the package and of the extra -> (class in Lightning, arguments).
LOGGERS: dict[str, tuple[str, dict[str, str]]] = {
    "tensorboard": ("TensorBoardLogger", {"name": "tensorboard", "version": "events"}),
    "wandb": ("WandbLogger", {"project": "vit"}),
    "mlflow": ("MLFlowLogger", {"experiment_name": "vit"}),
}


def logger_arguments(value: str) -> list[str]:
    """Arguments for --trainer.logger VALUE: a name of `LOGGERS` becomes its class and its place.

    UserError if its package is not installed.
    """
    option = "--trainer.logger"
    if value not in LOGGERS:
        return [f"{option}={value}"]
    if find_spec(value) is None:
        raise UserError(f"{option} {value} is not installed: pip install 'vitkit[{value}]'")
    kind, arguments = LOGGERS[value]
    given = {"save_dir": _HERE, **arguments}
    return [
        f"{option}=lightning.pytorch.loggers.{kind}",
        *(f"{option}.{key}={value}" for key, value in given.items()),
    ]


def place_loggers(config: Any, run_dir: Path) -> None:
    """Lets the loggers given by name write into the run."""
    logger = config.trainer.logger
    for entry in logger if isinstance(logger, list) else [logger]:
        arguments = getattr(entry, "init_args", None)
        if arguments is not None and arguments.get("save_dir") == _HERE:
            arguments["save_dir"] = str(run_dir)
