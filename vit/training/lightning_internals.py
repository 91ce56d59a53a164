"""Lightning's private parts that exact resume and a stop of all processes need, in one place.

tests/training/test_lightning_internals.py fails where Lightning has changed one of them.
"""

from subprocess import Popen
from typing import Any

from lightning.pytorch import Trainer


def ignore_signals(trainer: Trainer) -> None:
    """Leaves SIGINT, SIGTERM and SIGUSR1 to vit.signals.

    Lightning's SIGTERM handler broadcasts inside the handler and hangs when one process alone gets
    the signal; its SLURM handler saves in the middle of a step. Its agreement between steps is a
    broadcast to the device, which waits for a GPU in every step.
    """
    connector: Any = trainer._signal_connector
    connector.register_signal_handlers = _nothing
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing


def take_children(trainer: Trainer) -> list[Popen[bytes]]:
    """The processes that Lightning has started from this one; from now on they are the caller's.

    Lightning's observer of the same list kills this process by SIGKILL as soon as a child has ended
    with any status but 0, also after a stop that all agreed on.
    """
    processes: Any = getattr(trainer.strategy.launcher, "procs", None)
    children: list[Popen[bytes]] = list(processes or ())
    if children:
        processes.clear()
    return children


def place_loops(
    trainer: Trainer,
    loops: dict[str, Any],
    *,
    batches: int,
    batches_per_epoch: int,
    validation_due: bool,
) -> None:
    """Rewrites the state of Lightning's loops in a checkpoint to that after `batches` batches.

    What Lightning saves depends on the hook in which it was asked to save, and after several of
    them it repeats a batch, leaves one out, or skips a validation. The states written here are
    three that it continues exactly: an epoch that has ended, a batch that has ended inside an
    epoch, and a validation that has begun.

    Args:
        trainer: Of the run that resumes.
        loops: checkpoint["loops"]["fit_loop"].
        batches: Batches that a process has trained on.
        batches_per_epoch: Of a process.
        validation_due: Whether the validation after the last batch has not been finished.
    """
    epochs, batch = divmod(batches, batches_per_epoch)
    if batches and not batch and validation_due:
        epochs, batch = epochs - 1, batches_per_epoch
    due = validation_due and _validates(trainer, epochs, batch, batches_per_epoch)
    if not due and batch == batches_per_epoch:
        epochs, batch = epochs + 1, 0
    inside = batch > 0
    ended = {"processed": epochs, "completed": epochs}
    begun = {"ready": epochs + inside, "started": epochs + inside}
    loops["epoch_progress"] = {"total": ended | begun, "current": ended | begun}
    # Lightning restarts inside an epoch where it counts steps (max_steps), also at its end.
    restarts = inside or trainer.max_steps != -1
    pending = int(restarts and not due)  # the end of the last batch, which it then counts itself
    current = batch or batches_per_epoch * pending
    loops["epoch_loop.batch_progress"] = {
        "total": _counts(batches, completed=batches - pending),
        "current": _counts(current, completed=current - pending),
        "is_last_batch": due and batch == batches_per_epoch,
    }
    begun = {"ready": int(due), "started": int(due), "processed": 0, "completed": 0}
    loops["epoch_loop.val_loop.batch_progress"] = {
        "total": begun,
        "current": _counts(0, completed=0),
        "is_last_batch": False,
    }
    # The step under which loggers write; Lightning adds one after a validation or a batch.
    steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    steps = steps["total"]["completed"]
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = steps - (due or pending)


def _validates(trainer: Trainer, epoch: int, batch: int, batches_per_epoch: int) -> bool:
    """True if this trainer validates after so many batches of the epoch (from 0)."""
    interval, every = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if not trainer.enable_validation or not isinstance(interval, int | float):
        return False
    if every is None:
        return (epoch * batches_per_epoch + batch) % int(interval) == 0
    if isinstance(interval, float):
        interval = max(int(batches_per_epoch * interval), 1)
    return (epoch + 1) % every == 0 and batch % interval == 0


def _counts(number: int, *, completed: int) -> dict[str, int]:
    return {"ready": number, "started": number, "processed": number, "completed": completed}


def _nothing(*_: Any) -> None:
    """Takes the place of a method."""
