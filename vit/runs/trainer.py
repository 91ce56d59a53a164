"""Lightning's Trainer: which of its arguments a run takes, the batch, and errors in one line."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from jsonargparse import Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.warnings import disable_possible_user_warnings
from lightning.pytorch import Callback, Trainer

from vit.data.batches import DEFAULT_BATCH
from vit.data.module import ImageData
from vit.errors import MESSAGE, NOT_NEGATIVE, UserError, check_range, shorten
from vit.hardware import is_small_step
from vit.runs.processes import check_launched
from vit.runs.records import Record
from vit.tables import resolve, rows
from vit.training.network_training import NetworkTraining

Module = NetworkTraining[Any, Any]
"""What a task trains."""

SET_HERE = {
    *("barebones", "default_root_dir", "enable_checkpointing", "model_registry"),
    *("overfit_batches", "use_distributed_sampler"),
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
    params = sum(p.numel() for p in model.model.parameters())
    tokens = data.batch_size * data.image_size[0] * data.image_size[1] // model.model.patch_size**2
    if trainer.strategy.root_device.type == "cpu" and is_small_step(6 * params * tokens):
        torch.set_num_threads(1)


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


class BatchByWord(Protocol):
    """Entry of the table of values for a word in place of the number data.batch_size."""

    def __call__(
        self, config: Namespace, recipes: list[Record], run: Path | None
    ) -> list[Callback]:
        """Callbacks of the run, which choose the number once it is set up; maybe none.

        Replaces the word in `config`, which becomes config.yaml. `run`: the run that is resumed.
        UserError where the word has no meaning.
        """
        ...


def settle_batch(config: Namespace, recipes: list[Record], run: Path | None) -> list[Callback]:
    """Completes data.batch_size in `config`; as BatchByWord if it is a word."""
    data = config.data
    row = rows("values").get(f"data.batch_size={data.batch_size}")
    if row is not None:
        by_word: BatchByWord = resolve(row)
        return by_word(config, recipes, run)
    if data.batch_size is None and data.global_batch is None:
        data.batch_size = DEFAULT_BATCH  # config.yaml says what was used
    return []


@contextmanager
def naming_a_smaller_batch(trainer: Trainer, data: ImageData) -> Generator[None]:
    """Turns running out of memory into a UserError that names half the batch, if it is even."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        typed = isinstance(error, torch.OutOfMemoryError | MemoryError)
        if not typed and "DefaultCPUAllocator" not in str(error):
            raise
        size, remedy = data.batch_size, "choose a smaller batch, model or image"
        if size % 2 == 0:
            twice = 2 * trainer.accumulate_grad_batches
            remedy = f"try --data.batch_size {size // 2}"
            if data.global_batch is None:
                remedy += f" --trainer.accumulate_grad_batches {twice}"
        raise UserError(f"out of memory with batches of {size:,} images; {remedy}") from error
