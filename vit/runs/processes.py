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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from vit.console import is_first_process
from vit.data.module import ImageData
from vit.errors import UserError
from vit.exit import end_at_once
from vit.runs.mistakes import differences, listed
from vit.runs.options import Options
from vit.signals import deferred
from vit.training.lightning_internals import take_children
from vit.training.parts import from_all_processes

Facts = dict[str, Any]
HANDED_DOWN = "VIT_RUN"
"""Environment variable with the first process's decision, for those that Lightning starts."""
JOIN = timedelta(minutes=30)
"""The longest wait for the decision of the first process."""
GRACE_SECONDS = 30.0
"""Time for a process to save and end, after the first one has."""

_LOST_CONNECTION = re.compile(r"gloo|NCCL|connection (closed|reset)|timed? ?out", re.IGNORECASE)


class ProcessLost(ConnectionError):
    """Another process of the run has ended; status 1, in one line."""


def launched() -> tuple[str, int, int] | None:
    """(launcher, processes, processes of this machine) if a launcher has started several."""
    environment = os.environ
    if HANDED_DOWN in environment and not is_first_process():
        return None
    if "TORCHELASTIC_RUN_ID" in environment or {"RANK", "WORLD_SIZE"} <= environment.keys():
        started = int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_WORLD_SIZE", started))
        return ("torchrun", started, local) if started > 1 else None
    shell = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")  # Lightning launches there
    if "SLURM_PROCID" in environment and not shell:
        started = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
        local = started // int(environment.get("SLURM_STEP_NUM_NODES", "1"))
        return ("srun", started, local) if started > 1 else None
    return None


def decided_by_first(decide: Callable[[], tuple[dict[str, Any], Facts]]) -> tuple[Any, Facts]:
    """The decision of the first process, JSON values, and facts that it alone has, else none; its
    UserError is raised in all of them."""
    if HANDED_DOWN in os.environ and not is_first_process():
        return json.loads(os.environ[HANDED_DOWN]), {}
    several = launched()
    if several is None:
        return decide()
    launcher, processes, _ = several
    with deferred(several=True):  # a signal waits until the others have got the decision
        rank, store = _rendezvous(launcher, processes)
        if rank:
            decision = json.loads(store.get("vit"))
            store.set(f"vit{rank}", "")
            if "refused" in decision:
                raise UserError(decision["refused"])
            return decision, {}
        try:
            decision, facts = decide()
        except UserError as error:
            store.set("vit", json.dumps({"refused": str(error)}))
            raise
        store.set("vit", json.dumps(decision))
        store.wait([f"vit{other}" for other in range(1, processes)], JOIN)
        return decision, facts


def _rendezvous(launcher: str, processes: int) -> tuple[int, Any]:
    """Rank of this process, and a store that all processes of the run share."""
    environment = SLURMEnvironment() if launcher == "srun" else TorchElasticEnvironment()
    rank, address = environment.global_rank(), environment.main_address
    url = f"tcp://{address}:{environment.main_port}?rank={rank}&world_size={processes}"
    meeting = dist.rendezvous(url, timeout=JOIN)  # pyright: ignore[reportPrivateImportUsage]
    store, _, _ = next(meeting)
    return rank, store


def check_launched(trainer: Trainer) -> None:
    """UserError if a launcher has started more processes than the run has.

    Lightning would let each of them train alone.
    """
    several = launched()
    if several is not None and trainer.world_size == 1:
        launcher, started, local = several
        nodes = "" if local == started else f" --trainer.num_nodes {started // local}"
        raise UserError(
            f"{launcher} has started {started} processes, and this run has one: add "
            f"--trainer.devices {local}{nodes} --trainer.strategy ddp"
        )


def check_same(
    options: Options, data: ImageData, trainer: Trainer, _: LightningModule, stage: str
) -> None:
    """A callback's `setup`. UserError if processes of a run differ in options or images."""
    if trainer.world_size == 1 or stage != "fit":
        return
    given = {**options.recorded(), "images": data.digests}
    for rank, others in enumerate(from_all_processes(given)):
        if differing := differences(others, given):
            raise UserError(
                f"rank {rank} and rank {trainer.global_rank} differ: {listed(differing)}; give all "
                "processes the same command and the same images"
            )


class ChildrenAlive(Callback):
    """Ends the run when a process that Lightning has started from this one has ended."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self._joined = threading.Event()

    @contextmanager
    def watching(self, trainer: Trainer) -> Iterator[None]:
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
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for child in self.children:
            if child.poll() is not None:
                raise _lost(child)


@contextmanager
def ending_together(trainer: Trainer, alive: ChildrenAlive) -> Iterator[None]:
    """Work of all processes, of which the first goes on alone. ProcessLost if another has ended."""
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
        failed = [child for child in alive.children if child.returncode]
        if failed:
            raise _lost(failed[0])


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
