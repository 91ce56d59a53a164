"""The length of a run, in optimizer steps and by the clock."""

import math

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

from vit.errors import UserError
from vit.training.counted_data import counting_data


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
    """Optimizer steps of the whole run; None if at most the clock limits it."""
    if counting_data(trainer) is None or trainer.max_epochs == -1:
        steps = trainer.estimated_stepping_batches
        return None if steps == math.inf else int(steps)
    epoch = steps_per_epoch(trainer)
    assert epoch is not None  # a data module that counts knows its length
    steps = epoch * (trainer.max_epochs or 1)
    return steps if trainer.max_steps == -1 else min(steps, trainer.max_steps)


def time_limit(trainer: Trainer) -> Timer | None:
    """The Timer that ends the run (--trainer.max_time), or None."""
    callbacks = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    timers: list[Timer] = [c for c in callbacks if isinstance(c, Timer)]
    return next((timer for timer in timers if timer.time_remaining() is not None), None)


def time_used(timer: Timer) -> float:
    """The share of the time limit used, in [0, 1]."""
    elapsed = timer.time_elapsed()
    limit = elapsed + (timer.time_remaining() or 0.0)
    return min(elapsed / limit, 1.0) if limit > 0 else 1.0
