"""Every process of a run knows whether the others live: none waits for ever for one that is lost.

A process that ends closes its connections, and gloo then fails in the others. A machine that is
gone or a process that is stopped closes nothing, and NCCL does not notice the end of a process: the
others would wait until the limit of their collective, 10 or 30 minutes. Here a thread of each
process shows once per second, in a store of the first process, at which step it is.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from subprocess import Popen
from typing import Any, cast

import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from typing_extensions import override

from vit.errors import UserError, printable
from vit.signals import Stopped

_DONE = "done"
_LOST_CONNECTION = re.compile(r"gloo|NCCL|connection|timed? ?out|store", re.IGNORECASE)
_LONGEST = 200


class ProcessLost(ConnectionError):
    """Another process of the run is lost; one line says which, and what this one waited for."""


class WatchProcesses(Callback):
    """Ends this process where another one of the run is lost.

    A process that is alive, but slow, is waited for.

    Args:
        silence: Seconds without a sign of life after which a process counts as lost.
        interval: Seconds between two signs of life.
        grace: Seconds in which a process may end by itself after it has lost another one.
    """

    def __init__(self, *, silence: float = 60, interval: float = 1, grace: float = 10) -> None:
        self.silence, self.interval, self.grace = silence, interval, grace
        self.children: list[Popen[bytes]] = []
        """Processes that Lightning has started from this one."""
        self._watch: _Watch | None = None
        self._place = (0, "the start")

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.world_size == 1 or self._watch is not None or not dist.is_initialized():
            return
        procs: Any = getattr(trainer.strategy.launcher, "procs", None)
        if procs:
            # Lightning's observer shares this list, and kills this process by SIGKILL when a child
            # has ended first.
            self.children = list(procs)
            procs.clear()
        store = self._open_store(trainer)
        if store is not None:
            rank, world = trainer.global_rank, trainer.world_size
            self._watch = _Watch(store, rank, world, self, lambda: self._place)
            trainer.strategy.barrier()  # all have said that they are there
            self._watch.start()

    def _open_store(self, trainer: Trainer) -> Store | None:
        """A store in the first process, apart from the one that the collectives use."""
        host, limit = os.environ.get("MASTER_ADDR", "127.0.0.1"), timedelta(seconds=self.silence)
        store: TCPStore | None = None
        if trainer.is_global_zero:
            store = TCPStore(host, 0, None, True, limit, wait_for_workers=False)
        port = trainer.strategy.broadcast(None if store is None else store.port)
        try:
            store = store or TCPStore(host, cast(int, port), None, False, limit)
        except dist.DistError:  # a firewall
            pass
        if trainer.strategy.reduce_boolean_decision(store is not None, all=True):
            return store
        if trainer.is_global_zero:
            print(
                f"note: not all processes reach port {port} of {host}; a lost process is noticed "
                "by the limit of the collectives only",
                file=sys.stderr,
            )
        return None

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._place = (trainer.global_step + 1, "training")

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._place = (trainer.global_step, "validation")

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._place = (trainer.global_step, "the final evaluation")

    @override
    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._place = (trainer.global_step, "a save")

    def finish(self) -> None:
        """To be called where no other process is waited for any more."""
        if self._watch is not None:
            self._watch.leave(_DONE)
            self._watch = None

    def explain(self, error: BaseException) -> ProcessLost | None:
        """Tells the others why this process ends; what was lost, if that is the reason."""
        watch, self._watch = self._watch, None
        if watch is None:
            return None
        if not _is_lost_connection(error):
            reason = (printable(str(error)) or type(error).__name__)[:_LONGEST]
            # All processes have agreed on a stop; none waits for another.
            watch.leave(_DONE if isinstance(error, Stopped) else reason)
            return None
        return ProcessLost(0, watch.find_lost(printable(str(error))[:_LONGEST]))


def watching(trainer: Trainer) -> WatchProcesses | None:
    """The callback of a trainer, if it has one."""
    callbacks: list[Any] = trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
    return next((c for c in callbacks if isinstance(c, WatchProcesses)), None)


def _is_lost_connection(error: BaseException) -> bool:
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    plain = isinstance(error, RuntimeError) and not isinstance(error, UserError)
    return plain and _LOST_CONNECTION.search(str(error)) is not None


class _Watch(threading.Thread):
    """Shows that this process lives and reads whether the others do.

    Only the first process reads the signs of all; the others read its verdict, and its own sign.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        limits: WatchProcesses,
        place: Callable[[], tuple[int, str]],
    ) -> None:
        super().__init__(daemon=True, name="watch-processes")
        self._store, self._rank, self._world = store, rank, world
        self._limits, self._silence, self._place = limits, limits.silence, place
        self._signs = 0
        self._heard: dict[int, tuple[str, float]] = {}
        self._watched = list(range(1, world)) if rank == 0 else [0]
        self._verdict: str | None = None
        self._contact = time.monotonic()
        """When the store has answered last."""
        self._words: str | None = None
        self._ending = threading.Event()
        """The main thread knows that it has to end."""
        self._left, self._said = threading.Event(), threading.Event()
        store.set(self._key("words", rank), "")
        if rank == 0:
            store.set("verdict", "")
        self._show()

    def _key(self, what: str, rank: int) -> str:
        return f"{what}{rank}"

    def _show(self) -> None:
        self._signs += 1
        step, place = self._place()
        self._store.set(self._key("sign", self._rank), f"{self._signs} {step} {place}")

    @override
    def run(self) -> None:
        # The store of a process that is stopped, or of a machine that is gone, never answers.
        talk = threading.Thread(target=self._talk, daemon=True, name="watch-processes-talk")
        talk.start()
        while not self._left.wait(self._limits.interval):
            if time.monotonic() - self._contact > self._silence:
                self._verdict = self._verdict or "rank 0 is lost: no sign of life"
            elif not talk.is_alive():  # the first process holds the store
                self._verdict = self._verdict or "rank 0 is lost: its connections are closed"
            if self._verdict:
                # The main thread may be about to find out, or to end for a reason of its own.
                known = self._ending.wait(self._limits.grace) or self._left.is_set()
                if not known:
                    self._end()
                return

    def _talk(self) -> None:
        with suppress(RuntimeError):  # and its subclasses, the errors of torch.distributed
            while True:
                self._show()
                self._verdict = self._verdict or self._judge()
                if self._verdict and self._rank == 0:
                    self._store.set("verdict", self._verdict)
                self._contact = time.monotonic()
                if self._left.wait(self._limits.interval):
                    break
            if self._words is not None:
                self._store.set(self._key("words", self._rank), self._words)
        self._said.set()

    def _judge(self) -> str | None:
        """What ends the run, if anything does."""
        now = time.monotonic()
        keys = [self._key(what, r) for r in self._watched for what in ("sign", "words")]
        values = [value.decode() for value in self._store.multi_get([*keys, "verdict"])]
        if self._rank and values[-1]:
            return values[-1]
        for r, sign, words in zip(self._watched, values[::2], values[1::2], strict=False):
            if words == _DONE:
                self._heard[r] = sign, now
                continue
            if self._heard.get(r, ("", 0.0))[0] != sign:
                self._heard[r] = sign, now
            _, step, place = sign.split(" ", 2)
            if words:
                return f"rank {r} ended at step {step} ({place}): {words}"
            if now - self._heard[r][1] > self._silence:
                return f"rank {r} is lost: no sign of life since step {step} ({place})"
        return None

    def find_lost(self, symptom: str) -> str:
        """In the main thread, whose collective has failed: the line about the reason."""
        self._silence = min(self._silence, 4 * self._limits.interval)
        end = time.monotonic() + self._limits.grace
        while self._verdict is None and self.is_alive() and time.monotonic() < end:
            time.sleep(0.05)
        self._ending.set()
        if self._rank == 0:
            time.sleep(2 * self._limits.interval)  # others read the verdict here
        return self._line(self._verdict or f"a connection failed: {symptom}")

    def leave(self, words: str) -> None:
        """Says goodbye to the others, or why not."""
        self._words = words
        self._left.set()
        self._said.wait(self._limits.grace)

    def _line(self, verdict: str) -> str:
        step, place = self._place()
        return f"rank {self._rank} of {self._world} waited at step {step} ({place}): {verdict}"

    def _end(self) -> None:
        """Ends this process from here, because its main thread waits for what will not come."""
        print(f"vit: {self._line(self._verdict or '')}", file=sys.stderr, flush=True)
        for child in self._limits.children:
            child.kill()
        os._exit(1)
