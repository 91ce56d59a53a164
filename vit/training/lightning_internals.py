"""Lightning's private parts that exact resume, a stop of all processes and a step's loss need.

tests/training/test_lightning_internals.py fails where Lightning has changed one of them.
"""

import os
import sys
import time
from collections.abc import Callable
from subprocess import Popen

import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from vit.training.saving import Contents

if sys.version_info < (3, 11, 8) and (register := vars(os).get("register_at_fork")):
    # A child that is forked while a thread of torch.distributed holds a lock of Python waits for
    # ever (python/cpython#112275): these threads get time to finish.
    register(before=lambda: time.sleep(0.02 if dist.is_initialized() else 0))


def ignore_signals(trainer: Trainer) -> None:
    """Leaves SIGINT, SIGTERM and SIGUSR1 to vit.signals.

    Lightning's SIGTERM handler broadcasts inside the handler and hangs when one process alone gets
    the signal; its SLURM handler saves in the middle of a step. Its agreement between steps is a
    broadcast to the device, which waits for a GPU in every step.
    """
    trainer._signal_connector.register_signal_handlers = _nothing  # pyright: ignore
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = _nothing  # pyright: ignore


def take_children(trainer: Trainer) -> list[Popen[bytes]]:
    """The processes that Lightning has started from this one; the caller watches them from now on.

    Lightning's own observer kills this process by SIGKILL once a child has ended with any status
    but 0, even after an agreed stop.
    """
    launcher = trainer.strategy.launcher
    if not isinstance(launcher, _SubprocessScriptLauncher):
        return []
    children, launcher.procs[:] = list(launcher.procs), []
    return children


def is_logged(trainer: Trainer) -> bool:
    """True if the loggers get the figures of this batch, the last one of its step."""
    return (
        trainer._logger_connector.should_update_logs and not trainer.fit_loop._should_accumulate()
    )


def place_loops(
    trainer: Trainer,
    loops: Contents,
    *,
    batches: int,
    batches_per_epoch: int,
    validation_due: bool,
) -> bool:
    """Rewrites the state of Lightning's loops in a checkpoint to that after `batches` batches.

    The state that Lightning saves depends on the hook, and after several of them it repeats a
    batch, leaves one out, or skips a validation. It continues these three exactly: an epoch that
    has ended, a batch that has ended inside an epoch, and a validation that has begun.

    `loops` is checkpoint["loops"]["fit_loop"]. Batches are those of one process; `validation_due`
    if the validation after the last one has not been finished. True if this trainer repeats it.
    """
    epochs, batch = divmod(batches, batches_per_epoch)
    if batches and not batch and validation_due:
        epochs, batch = epochs - 1, batches_per_epoch
    every = trainer.check_val_every_n_epoch
    due = validation_due and (every is None or (epochs + 1) % every == 0)
    due = due and trainer.enable_validation
    if not due and batch == batches_per_epoch:
        epochs, batch = epochs + 1, 0
    if trainer.max_epochs not in (None, -1):
        # Lightning refuses a limit below the epochs that are trained; below the steps, it ends.
        trainer.fit_loop.max_epochs = max(trainer.max_epochs, epochs + due)
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
    validation = {"total": begun, "current": _counts(0, completed=0), "is_last_batch": False}
    loops["epoch_loop.val_loop.batch_progress"] = validation
    # The step under which loggers write; Lightning adds one after a validation or a batch.
    progress = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]
    steps = progress["total"]["completed"] - (due or pending)
    loops["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    return due


def log_at_last_step(trainer: Trainer) -> None:
    """Lets loggers write what follows a fit under its last step; Lightning's own count is one lower
    after a resume that had nothing left to train."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = trainer.global_step


def begin_with_validation(trainer: Trainer, step: int) -> Callable[[], None]:
    """Lets a fit that continues at `step` begin with the validation that is due.

    The call that it returns undoes that, once the validation has begun.
    """
    loop = trainer.fit_loop.epoch_loop
    limits = loop.min_steps, loop.max_steps
    loop.min_steps = step + 1  # else nothing runs once max_time has passed
    if 0 < loop.max_steps <= step:
        loop.max_steps = step + 1  # or the last step has been taken
    loop._should_check_val_fx = lambda data_fetcher: True  # at whatever batch the time was up

    def put_back() -> None:
        loop.min_steps, loop.max_steps = limits
        del loop._should_check_val_fx

    return put_back


def _counts(number: int, *, completed: int) -> dict[str, int]:
    return {"ready": number, "started": number, "processed": number, "completed": completed}


def _nothing(*_: object) -> None: ...
