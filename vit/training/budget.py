"""The length of a run in optimizer steps, and who settles it."""

import math
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback

from vit.errors import UserError
from vit.training.counted_data import counting_data


class Length(Callback):
    """The length of a run, by the limits of the Trainer alone.

    A subclass sets max_steps of the Trainer's loop while the run goes on; the schedule follows it.
    """

    began: float | None = None
    """time.monotonic() at the start of the command; None in a program's own loop."""

    def close(self, run: Path) -> None:
        """Called at the end of the command, in every process, with the finished run."""


def steps_per_epoch(trainer: Trainer) -> int | None:
    """Optimizer steps of an epoch; None if the loader has no length."""
    batches = batches_per_epoch(trainer)
    return None if batches is None else math.ceil(batches / trainer.accumulate_grad_batches)


def batches_per_epoch(trainer: Trainer) -> float | None:
    """Training batches of an epoch; None if the loader has no length."""
    data = counting_data(trainer)
    if data is None:
        trainer.fit_loop.setup_data()
        return None if trainer.num_training_batches == math.inf else trainer.num_training_batches
    # Lightning's count would start the loader, under some strategies before a resumed run knows
    # its position.
    batches = data.samples_per_epoch(trainer.world_size) // (data.batch_size * trainer.world_size)
    limit = trainer.limit_train_batches
    return min(batches, limit) if isinstance(limit, int) else int(batches * limit)


def check_intervals(trainer: Trainer) -> None:
    """UserError if an epoch is shorter than the validation interval counted within it."""
    batches, interval = batches_per_epoch(trainer), trainer.val_check_interval
    within = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    if batches and within and isinstance(interval, int) and interval > batches:
        raise UserError(
            f"trainer.val_check_interval={interval} is more than the {batches} batches of an "
            "epoch; add --trainer.check_val_every_n_epoch null to count across epochs"
        )


def step_budget(trainer: Trainer) -> int | None:
    """Optimizer steps of the whole run; None if no limit of steps or epochs is known."""
    if counting_data(trainer) is None or trainer.max_epochs == -1:
        steps = trainer.estimated_stepping_batches
        return None if steps == math.inf else int(steps)
    epoch = steps_per_epoch(trainer)
    assert epoch is not None  # a data module that counts knows its length
    steps = epoch * (trainer.max_epochs or 1)
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)
