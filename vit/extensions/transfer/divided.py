"""Runs of `vit fit` as processes, which several commands of one folder divide among them."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from vit.console import say
from vit.errors import UserError
from vit.runs.predictions import FILE
from vit.runs.records import LOCK, Record, read_summary
from vit.signals import HANDLED, Stopped
from vit.weights.weight_file import read_json
from vit.writing import remove, write_json

COMMAND = (sys.executable, "-m", "vit", "fit")
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """A run of `vit fit`."""

    folder: Path
    """The run directory."""
    cells: Path
    """Folder of NAME.json, its record, NAME.log and NAME.lock."""
    words: list[str]
    split: str
    """val or test, on which it is scored. The checkpoints of one of val are deleted: they are
    larger than the model."""
    timed: bool = False
    """Is never resumed: its time is that of the whole run."""

    @property
    def record(self) -> Record:
        """`began` and `ended` in seconds since 1970, and `failed`: why, or None; empty for a run
        that has not ended."""
        return read_json(self.cells / f"{self.folder.name}.json")

    @property
    def score(self) -> float | None:
        """Accuracy, in [0, 1]; None for a run that has failed, or not ended."""
        if self.record.get("failed", "") is not None:
            return None
        return read_summary(self.folder)["metrics"][f"{self.split}/acc1"]

    @property
    def seconds(self) -> float:
        """Time of a run that has ended, from command to exit."""
        return self.record["ended"] - self.record["began"]

    @cached_property
    def hits(self) -> np.ndarray:
        """(n,) true for the images that are named rightly, in the order of the data."""
        with np.load(self.folder / FILE) as file:
            right = file["labels"] == file["top_classes"][:, 0]
            return right[np.argsort(file["indices"])]

    def run(self) -> None:
        """Trains, resumes or reads the run. UserError for an error that is not the run's own, such
        as a full disk; Stopped after a signal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / LOCK):
            pass  # a run whose command was killed has ended
        if self.timed:
            remove(self.folder)
        log, began = self.cells / f"{self.folder.name}.log", time.time()
        command = [*COMMAND, *self.words, f"--run_dir={self.folder}"]
        with (
            log.open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as child,
        ):
            try:
                status = child.wait()
            except BaseException:
                child.terminate()
                raise
        if status - 128 in HANDLED:
            raise Stopped(status - 128)
        last = (log.read_text("utf-8", "replace").splitlines() or [""])[-1].removeprefix("vit: ")
        if status == 1:
            raise UserError(f"{self.folder} ended with an error: {last} ({log})")
        failed = None if status == 0 else last if status > 0 else f"killed by signal {-status}"
        if self.split == "val":
            remove(self.folder / "checkpoints")
        record = {"began": began, "ended": time.time(), "failed": failed}
        write_json(self.cells / f"{self.folder.name}.json", record)
        say(f"{self.folder.name}: {failed or f'{self.score:.2%} of {self.split}'}")


def complete(jobs: Sequence[Job], in_time: Callable[[], bool]) -> list[Job]:
    """Runs those that no other process runs, and waits for the others. Returns those that were not
    begun in time."""
    while left := [job for job in jobs if not job.record]:
        late = []
        for job in left:
            try:
                with FileLock(job.cells / f"{job.folder.name}.lock", timeout=0):
                    if job.record:
                        continue
                    if in_time():
                        job.run()
                    else:
                        late.append(job)
            except Timeout:
                time.sleep(POLL_SECONDS)
        if late == left:
            return late
    return []
