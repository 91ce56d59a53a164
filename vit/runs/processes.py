"""The processes of a run: the first one decides for all, and all end together.

torchrun or srun starts them at once; otherwise the first one does, inside Trainer.fit.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.console import is_first_process
from vit.errors import UserError
from vit.runs.records import Record
from vit.signals import deferred, end_at_once
from vit.training.lightning_internals import take_children

HANDED_DOWN = "VIT_RUN"
"""Environment variable with the first process's decision, for those that Lightning starts."""
JOIN = timedelta(minutes=30)
"""The longest wait for the decision of the first process."""
GRACE_SECONDS = 30.0
"""Time for a process to save and end, after the first one has."""

_LOST_CONNECTION = re.compile(r"gloo|NCCL|connection (closed|reset)|timed? ?out", re.IGNORECASE)


class ProcessLost(ConnectionError):
    """Another process of the run has ended; status 1, in one line."""


def launched() -> tuple[str, int] | None:
    """Name and number of processes of the launcher that has started several, if one has."""
    variables, name, started = os.environ, "torchrun", 1
    if HANDED_DOWN in variables and not is_first_process():
        return None
    shell = variables.get("SLURM_JOB_NAME") in ("bash", "interactive")  # Lightning launches there
    if "TORCHELASTIC_RUN_ID" in variables or {"RANK", "WORLD_SIZE"} <= variables.keys():
        started = int(variables["WORLD_SIZE"])
    elif "SLURM_PROCID" in variables and not shell:
        name, started = "srun", int(variables.get("SLURM_STEP_NUM_TASKS", "1"))
    return (name, started) if started > 1 else None


def decided_by_first(decide: Callable[[], Record]) -> Record:
    """The decision of the first process, in JSON types; its UserError is raised in all of them."""
    if HANDED_DOWN in os.environ and not is_first_process():
        return json.loads(os.environ[HANDED_DOWN])
    if (launcher := launched()) is None:
        return decide()
    name, processes = launcher
    with deferred(several=True):  # a signal waits until the others have got the decision
        cluster = SLURMEnvironment() if name == "srun" else TorchElasticEnvironment()
        rank, address = cluster.global_rank(), f"{cluster.main_address}:{cluster.main_port}"
        url = f"tcp://{address}?rank={rank}&world_size={processes}"
        store: dist.Store = next(dist.rendezvous(url, timeout=JOIN))[0]  # pyright: ignore
        if rank:
            decision: Record = json.loads(store.get("vit"))
            store.set(f"vit{rank}", "")
        else:
            try:
                decision = decide()
            except UserError as error:
                decision = {"refused": str(error)}
            store.set("vit", json.dumps(decision))
            store.wait([f"vit{other}" for other in range(1, processes)], JOIN)
    if "refused" in decision:
        raise UserError(decision["refused"])
    return decision


def check_launched(trainer: Trainer) -> None:
    """UserError if a launcher has started more processes than the run has: Lightning would let each
    of them train alone."""
    launcher = launched()
    if launcher is not None and trainer.world_size == 1:
        raise UserError(
            f"{launcher[0]} has started {launcher[1]} processes, and this run has one: add "
            "--trainer.strategy ddp --trainer.devices N, the processes of a machine, and "
            "--trainer.num_nodes N for several machines"
        )


class ChildrenAlive(Callback):
    """Ends the run when a process that Lightning has started from this one has ended."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self._joined = threading.Event()

    @contextmanager
    def watching(self, trainer: Trainer) -> Generator[None]:
        """Watches in a thread until all have joined: this process waits outside Python for that,
        and Lightning's own observer would kill it, without the status of the one that ended."""
        thread = threading.Thread(target=self._watch, args=(trainer,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._joined.set()
            thread.join()

    def _watch(self, trainer: Trainer) -> None:
        while not self._joined.wait(0.1):
            self.children += take_children(trainer)
            for child in [child for child in self.children if child.poll() is not None]:
                print(f"vit: {_lost(child)}", file=sys.stderr, flush=True)
                for other in self.children:
                    other.kill()
                end_at_once(max(child.returncode, 1))  # 130 after Ctrl-C, which all processes get

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._joined.set()
        self.children += take_children(trainer)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        for child in self.children:
            if child.poll() is not None:
                raise _lost(child)


@contextmanager
def ending_together(trainer: Trainer, alive: ChildrenAlive) -> Generator[None]:
    """The part of a run that all processes do; the first goes on. ProcessLost if one has ended."""
    with deferred(several=True) if trainer.world_size > 1 else nullcontext():
        try:
            with alive.watching(trainer):
                yield
        except BaseException as error:
            alive.children += take_children(trainer)
            ended = [child for child in alive.children if child.poll() not in (None, 0)]
            _end(alive.children)
            kind = isinstance(error, RuntimeError | ConnectionError)
            if trainer.world_size > 1 and kind and _LOST_CONNECTION.search(str(error)):
                why = f": {_lost(ended[0])}" if ended else ""
                raise ProcessLost(
                    f"rank {trainer.global_rank} has lost another process of the run at step "
                    f"{trainer.global_step}{why}"
                ) from error
            raise
        if dist.is_initialized():
            dist.destroy_process_group()  # each is alone from here on
        _end(alive.children)
        for child in alive.children:
            if child.returncode:
                raise _lost(child)


def _lost(child: subprocess.Popen[bytes]) -> ProcessLost:
    code = child.returncode
    how = f"signal {-code}" if code < 0 else f"exit status {code}"
    return ProcessLost(f"process {child.pid} of the run ended ({how})")


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            child.kill()  # it waits for this process
            child.wait()
