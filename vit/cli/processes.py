"""The processes of a run, from where Lightning starts them to where all have ended."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from vit.errors import UserError
from vit.hardware import limit_threads
from vit.signals import deferred

# How long a process may take to save and end, after the first one has.
GRACE_SECONDS = 30.0
SHELLS = ("bash", "interactive")
"""Names of SLURM jobs in which somebody types commands; Lightning starts processes there itself."""


def start() -> AbstractContextManager[None]:
    """The whole of a command that a launcher may have started as one of several processes.

    A signal then waits until the others can be notified, or they would wait for this process.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if "SLURM_PROCID" in os.environ:
        several = several or int(os.environ.get("SLURM_NTASKS", "1")) > 1
    return deferred(several=True) if several else nullcontext()


def check_started(processes: int) -> None:
    """UserError where a launcher has started more than the `processes` of the run.

    Lightning would let each of them train alone, all on the same images.
    """
    environment = os.environ
    if "TORCHELASTIC_RUN_ID" in environment:
        launcher, started = "torchrun", int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_WORLD_SIZE", started))
    elif environment.get("SLURM_JOB_NAME") in SHELLS:
        return
    elif "SLURM_PROCID" in environment:  # absent in a batch script itself, but for its one process
        launcher, started = "srun", int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
        local = started // int(environment.get("SLURM_STEP_NUM_NODES", "1"))
    else:
        return
    if processes == 1 < started:
        nodes = "" if local == started else f" --trainer.num_nodes {started // local}"
        raise UserError(
            f"{launcher} has started {started} processes, and this run has one: add "
            f"--trainer.devices {local}{nodes} --trainer.strategy ddp"
        )


@contextmanager
def together(trainer: Any) -> Iterator[None]:
    """Work of all processes of a trainer.

    In it a signal to one of several processes waits until all agree to stop (StopTogether), and
    when the work fails here the processes that Lightning has started from here end, too. Raises
    ProcessLost where the work fails because another process is lost (WatchProcesses).
    """
    from vit.training.callbacks.watching import watching  # heavy: imports lightning

    with deferred(several=True) if trainer.world_size > 1 else nullcontext():
        watch = watching(trainer)
        try:
            yield
        except BaseException as error:
            children = _children(trainer)
            lost = None if watch is None else watch.explain(error)
            _end(children if watch is None else [*children, *watch.children])
            if lost is not None:
                raise lost from error
            raise
        if watch is not None:
            watch.finish()


def _children(trainer: Any) -> list[subprocess.Popen[bytes]]:
    """The processes that Lightning has started from here and that no WatchProcesses has taken."""
    procs: Any = getattr(trainer.strategy.launcher, "procs", None)
    children: list[subprocess.Popen[bytes]] = list(procs or ())
    if children:
        # Lightning's observer shares this list, and kills this process when a child ends first.
        procs.clear()
    return children


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()  # it waits for this process
            child.wait()


def limit_threads_of(cli: Any) -> None:
    """Uses one CPU thread for a small model, in training and in evaluations of the run alike."""
    data, network = cli.datamodule, cli.model.model
    if cli.trainer.strategy.root_device.type == "cpu":
        params = sum(p.numel() for p in network.parameters())
        height, width = data.image_size
        tokens = height * width // network.patch_size**2
        limit_threads(params, tokens, data.batch_size)


def forget_routes() -> None:
    """The next command of this process chooses its routes for itself."""
    from vit.kernels.routes import use_routes  # heavy: imports torch

    use_routes(None)
