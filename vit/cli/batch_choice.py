"""--data.batch_size auto: the largest batch that fits, chosen before the first step."""

import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.cli.batch_memory import largest_batch, own_sizes
from vit.cli.recipes import recipe_options
from vit.cli.resuming import config_beside
from vit.data.module import DEFAULT_BATCH
from vit.errors import UserError
from vit.training.mixing import check_pairs

AUTO = "auto"
COUNTED_IN_BATCHES = ("val_check_interval", "limit_train_batches")
"""Arguments of the Trainer that count batches where they are whole numbers."""


def settle_batch(config: Namespace, args: list[str]) -> None:
    """Says how many images a step has where the batch is to be chosen.

    Without data.global_batch these are what the recipe asks for: its batch_size, devices and
    accumulation. A batch that was chosen when the run began may be chosen again, for another number
    of processes. `args` as `resolve_recipes` returns them.
    """
    data, trainer, choice = config.data, config.trainer, config.batch_choice
    if choice is not None and choice.get("batch_size") == data.batch_size:
        data.batch_size = AUTO
    elif data.batch_size != AUTO:
        config.batch_choice = None
    if data.batch_size != AUTO:
        return
    accumulated = trainer.accumulate_grad_batches
    if data.global_batch is None:
        data.global_batch = _images_of_recipe(args) * accumulated
        for name in COUNTED_IN_BATCHES:  # the choice counts steps
            if type(trainer[name]) is int:
                trainer[name] = max(1, trainer[name] // accumulated)
    elif accumulated != 1:
        raise UserError(
            f"accumulate_grad_batches={accumulated} contradicts data.batch_size=auto, from which "
            "the accumulation follows; leave it out (--trainer.accumulate_grad_batches 1)"
        )
    trainer.accumulate_grad_batches = 1


def _images_of_recipe(args: list[str]) -> int:
    """Images per step of the recipes behind -c, without accumulation; the later ones win."""
    numbers = {"batch_size": DEFAULT_BATCH, "devices": 1, "num_nodes": 1}
    for options in recipe_options(args):
        for section in ("data", "trainer"):
            content = options.get(section)
            for name, value in (content if isinstance(content, dict) else {}).items():
                if name in numbers and type(value) is int and value > 0:
                    numbers[name] = value
    return numbers["batch_size"] * numbers["devices"] * numbers["num_nodes"]


def batch_choice_of(checkpoint: Path, config: Namespace) -> dict[str, Any] | None:
    """How the run that goes on came to its batch, where it was chosen."""
    choice = config.batch_choice or config_beside(checkpoint).get("batch_choice")
    return choice if isinstance(choice, dict) else None


class ChooseBatch(Callback):
    """Chooses the batch of a run with data.batch_size=auto when its processes have found together.

    The choice goes into the configuration, for config.yaml. One that the configuration brings, of
    the same number of processes and images per step, is taken as it is: a run goes on with the
    batch that it began with.

    Args:
        config: Of the run.
    """

    def __init__(self, config: Namespace) -> None:
        super().__init__()
        self._config = config

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        module: Any = pl_module
        if stage != "fit" or not data.chooses_batch:
            return
        processes, whole = trainer.world_size, data.batch_size * trainer.world_size
        sizes = own_sizes(trainer, module, data)
        if not sizes:
            check_pairs(whole // processes, whole)
        before = self._config.batch_choice
        kept = {"processes": processes, "images_per_step": whole}
        if before and before.get("batch_size") in sizes and kept.items() <= before.items():
            size, how = before["batch_size"], "as chosen when the run began"
        else:
            size, how = largest_batch(trainer, module, sizes)
            self._config.batch_choice = {"batch_size": size, **kept, "because": how}
        self._config.data.batch_size = size
        data.share_batch(trainer, size)
        batches = trainer.accumulate_grad_batches
        for name in COUNTED_IN_BATCHES:
            if type(getattr(trainer, name)) is int:
                setattr(trainer, name, getattr(trainer, name) * batches)
        if trainer.is_global_zero:
            several = "" if processes == 1 else f" on each of {processes:,} processes"
            number = "one batch" if batches == 1 else f"{batches:,} batches"
            print(
                f"batch size {size:,}{several}, {how}: {number} per step of {whole:,} images "
                "(--data.batch_size auto)",
                file=sys.stderr,
            )
