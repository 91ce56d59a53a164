"""Lightning's Trainer: which of its arguments a run takes, and its errors in one line."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import disable_possible_user_warnings
from lightning.pytorch import Callback, Trainer

from vit.data.module import ImageData
from vit.errors import MESSAGE, NOT_NEGATIVE, UserError, check_range, shorten
from vit.hardware import limit_threads
from vit.runs.processes import check_launched
from vit.tables import resolve, rows
from vit.training.network_training import NetworkTraining

Module = NetworkTraining[Any, Any]
"""What a task trains."""

SET_HERE = {
    "barebones",
    "default_root_dir",
    "enable_checkpointing",
    "model_registry",
    "overfit_batches",
    "use_distributed_sampler",
}
"""Arguments that a run sets itself."""
NOT_ZERO = (
    *("accumulate_grad_batches", "check_val_every_n_epoch", "limit_test_batches"),
    *("limit_train_batches", "max_epochs", "val_check_interval"),
)
"""Arguments of which the Trainer takes 0 silently."""


def build_trainer(**arguments: Any) -> Trainer:
    """A Trainer that leaves sampling to the run. UserError for arguments that it refuses, and for
    fewer processes than a launcher has started."""
    row = rows("values").get(f"trainer.strategy={arguments.get('strategy')}")
    if row is not None:  # of a name Lightning does not check the precision
        arguments["strategy"] = resolve(row)()
    with in_one_line(MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError):
        trainer = Trainer(use_distributed_sampler=False, **arguments)
    check_launched(trainer)
    return trainer


@contextmanager
def in_one_line(*kinds: type[Exception]) -> Generator[None]:
    """Turns the Trainer's errors about its arguments into a UserError."""
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        raise UserError(f"trainer: {shorten(' '.join(str(error).split()), MESSAGE)}") from error


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a Trainer, for which Lightning has no type."""
    return trainer.callbacks  # pyright: ignore


def limit_threads_of(trainer: Trainer, model: Module, data: ImageData) -> None:
    """Uses one CPU thread for a small model, in training and in evaluation."""
    if trainer.strategy.root_device.type == "cpu":
        params = sum(p.numel() for p in model.model.parameters())
        height, width = data.image_size
        limit_threads(params, height * width // model.model.patch_size**2, data.batch_size)


def check_arguments(trainer: Namespace) -> None:
    """UserError for values that the Trainer takes silently and that cannot be meant."""
    for name in NOT_ZERO:
        value = trainer[name]
        if isinstance(value, int | float) and value <= 0 and (name, value) != ("max_epochs", -1):
            raise UserError(f"trainer.{name}={value} must be more than 0")
    if trainer.gradient_clip_val is not None:  # a negative one would climb
        check_range("trainer.gradient_clip_val", trainer.gradient_clip_val, NOT_NEGATIVE)
    if isinstance(trainer.val_check_interval, str):
        raise UserError(
            f"trainer.val_check_interval={trainer.val_check_interval} is a time, after which a run "
            "cannot be resumed exactly; give a number of batches, or a share of an epoch"
        )
    if str(trainer.strategy).startswith(("ddp_spawn", "ddp_fork", "ddp_notebook", "xla")):
        raise UserError(
            f"trainer.strategy={trainer.strategy} copies the started process, which is not "
            "supported; choose ddp"
        )


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
