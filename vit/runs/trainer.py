"""Lightning's Trainer: which of its arguments a run takes, its loggers by name, its errors in one
line."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import disable_possible_user_warnings
from lightning.pytorch import Trainer

from vit.errors import MESSAGE, UserError, shorten
from vit.hardware import limit_threads
from vit.tables import resolve, rows

# Arguments that a run sets itself.
SET_HERE = {
    "barebones",
    "default_root_dir",
    "enable_checkpointing",
    "model_registry",
    "overfit_batches",
    "use_distributed_sampler",
}
# Argument -> smallest value; the Trainer takes smaller ones silently.
LEAST = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "gradient_clip_val": 0,
    "limit_test_batches": 1e-9,
    "limit_train_batches": 1e-9,
    "log_every_n_steps": 0,
    "max_epochs": 1,
    "max_steps": 0,
    "val_check_interval": 1e-9,
}
# These copy a started process; the command is started once for each process instead.
COPYING = ("ddp_spawn", "ddp_fork", "ddp_notebook", "xla")
RUN_DIRECTORY = "RUN_DIRECTORY"
"""Stands for the run directory until it is known."""

# Name, which is also that of the package and of the extra -> (class in Lightning, arguments).
LOGGERS: dict[str, tuple[str, dict[str, str]]] = {
    "tensorboard": ("TensorBoardLogger", {"name": "tensorboard", "version": "events"}),
    "wandb": ("WandbLogger", {"project": "vit"}),
    "mlflow": ("MLFlowLogger", {"experiment_name": "vit"}),
}


def build_trainer(**arguments: Any) -> Trainer:
    """A Trainer that leaves sampling to the run. UserError for arguments that it refuses."""
    row = rows("values").get(f"trainer.strategy={arguments.get('strategy')}")
    if row is not None:  # of a name Lightning does not check the precision
        arguments["strategy"] = resolve(row)()
    with in_one_line(MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError):
        return Trainer(use_distributed_sampler=False, **arguments)


@contextmanager
def in_one_line(*kinds: type[Exception]) -> Iterator[None]:
    """Turns the Trainer's errors about its arguments into a UserError."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(f"trainer: {shorten(' '.join(str(error).split()), MESSAGE)}") from error


def limit_threads_of(trainer: Trainer, model: Any, data: Any) -> None:
    """Uses one CPU thread for a small model, in training and in evaluation."""
    if trainer.strategy.root_device.type == "cpu":
        params = sum(p.numel() for p in model.model.parameters())
        height, width = data.image_size
        limit_threads(params, height * width // model.model.patch_size**2, data.batch_size)


def check_arguments(trainer: Namespace) -> None:
    """UserError for values that the Trainer takes silently and that cannot be meant."""
    for name, least in LEAST.items():
        value = trainer[name]
        unlimited = name in ("max_epochs", "max_steps") and value == -1
        if isinstance(value, int | float) and value < least and not unlimited:
            rule = "above 0" if 0 < least < 1 else f"at least {least}"
            raise UserError(f"trainer.{name}={value} must be {rule}")
    if isinstance(trainer.val_check_interval, str):
        raise UserError(
            f"trainer.val_check_interval={trainer.val_check_interval} is a time, after which a run "
            "cannot be resumed exactly; give a number of batches, or a share of an epoch"
        )
    if str(trainer.strategy).startswith(COPYING):
        raise UserError(
            f"trainer.strategy={trainer.strategy} copies the started process, which is not "
            "supported; choose ddp"
        )


def with_logger(word: str) -> list[str]:
    """The word; for --trainer.logger and a name of `LOGGERS` words for its class and its place.

    UserError if its package is not installed.
    """
    option, _, value = word.partition("=")
    if option != "--trainer.logger" or value not in LOGGERS:
        return [word]
    if find_spec(value) is None:
        raise UserError(f"{option} {value} is not installed: pip install 'vitkit[{value}]'")
    kind, arguments = LOGGERS[value]
    given = {"save_dir": RUN_DIRECTORY, **arguments}
    return [
        f"{option}=lightning.pytorch.loggers.{kind}",
        *(f"{option}.{key}={value}" for key, value in given.items()),
    ]


def quiet_lightning() -> None:
    """Drops Lightning's adverts, and advice that this package follows already."""
    disable_possible_user_warnings()
    for pattern in (
        ".*Total length of `list` across ranks is zero.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*was called before the ``update`` method.*",
        ".*WeightAveraging callback with a model that overrides the configure_model.*",
        ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*",
        ".*Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step.*",
    ):
        warnings.filterwarnings("ignore", message=pattern)
    for name in ("pytorch", "fabric", "pytorch.utilities.rank_zero", "fabric.utilities.rank_zero"):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    # These speak only where --trainer.enable_model_summary or --trainer.profiler asks for it, and
    # about a process that ends before it has joined.
    launcher = "fabric.strategies.launchers.subprocess_script"
    for name in ("pytorch.callbacks.model_summary", "pytorch.profilers.profiler", launcher):
        logging.getLogger(f"lightning.{name}").setLevel(logging.INFO)
