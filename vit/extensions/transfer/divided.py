"""Runs of `vit fit` as processes, which several commands of one folder divide among themselves."""

import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from vit.console import say
from vit.errors import UserError, some_of
from vit.runs.predictions import FILE, Predictions
from vit.runs.records import LOCK, Record, read_summary
from vit.signals import HANDLED, Stopped
from vit.weights.weight_file import read_json
from vit.writing import remove, write_json, write_text

COMMAND = (sys.executable, "-m", "vit", "fit")
POLL_SECONDS = 0.5
Pair = tuple[Predictions, Predictions]
"""Of two runs."""
_INDEX_BITS = 40
"""Of an image in its set."""


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
    after: "Job | None" = None
    """A run that has to end before."""

    @property
    def record(self) -> Record:
        """`began` and `ended` in seconds since 1970, and `failed`: why, or None; empty for a run
        that has not ended."""
        return read_json(self.cells / f"{self.folder.name}.json")

    @property
    def score(self) -> float | None:
        """Accuracy, or mean average precision of several labels, in [0, 1]; None for a run that has
        failed, or not ended."""
        if self.record.get("failed", "") is not None:
            return None
        metrics = read_summary(self.folder)["metrics"]
        return metrics.get(f"{self.split}/map", metrics.get(f"{self.split}/acc1"))

    @property
    def seconds(self) -> float:
        """Time of a run that has ended, from command to exit."""
        return self.record["ended"] - self.record["began"]

    @property
    def log(self) -> Path:
        """File of the output, which is there from the start of the run."""
        return self.cells / f"{self.folder.name}.log"

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions for the split, in the order of the data."""
        return read_predictions(self.folder)

    def run(self) -> None:
        """Trains, resumes or reads the run. UserError for an error that is not the run's own, such
        as a full disk; Stopped after a signal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / LOCK):
            pass  # a run whose command was killed has ended
        if self.timed:
            remove(self.folder)
        log, began = self.log, time.time()
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


@dataclass(frozen=True)
class JobGroup:
    """Runs that are scored as one: those of each fold, or a single one."""

    jobs: Sequence[Job]

    @property
    def failed(self) -> str | None:
        """Reason of the first run that has failed."""
        return next((why for job in self.jobs if (why := job.record.get("failed"))), None)

    @property
    def score(self) -> float | None:
        """Mean of the runs; None if one has failed, or not ended."""
        scores = [score for job in self.jobs if (score := job.score) is not None]
        return statistics.mean(scores) if len(scores) == len(self.jobs) else None

    @property
    def seconds(self) -> float | None:
        """Time of all runs; None if one has not ended."""
        ended = all(job.record for job in self.jobs)
        return sum(job.seconds for job in self.jobs) if ended else None

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions of each run, one after the other."""
        return joined([job.predictions for job in self.jobs])


@dataclass(frozen=True)
class Division:
    """Commands of one folder that divide its runs: those of one machine by locks on files, machines
    that share the folder by shards.

    Args:
        cells: Folder of the records.
        shard: Number, from 0, and count. A shard runs its part of each list, and waits for the
            others; the first one decides.
        began: In seconds since 1970.
    """

    cells: Path
    shard: tuple[int, int]
    began: float

    def complete(self, jobs: Sequence[Job], seconds: float = math.inf) -> list[Job]:
        """Runs those of the shard that no other process runs, and waits for the others. Returns
        those that were not begun before `seconds` were used; what was begun is finished."""
        number, count = self.shard
        in_time, waiting = True, False
        while left := [job for job in jobs if not job.record]:
            for job in (job for job in jobs[number::count] if not job.record):
                begun = job.log.is_file()
                in_time = in_time and (begun or self.in_time(seconds))
                if begun or in_time:
                    self._run(job)
            if any(job.record for job in left):
                continue
            in_time = in_time and self.in_time(seconds)
            if not in_time and not any(job.log.is_file() for job in left):
                return left
            if not waiting:
                say(f"waiting for another process: {some_of(job.folder.name for job in left)}")
            waiting = True
            time.sleep(POLL_SECONDS)
        return []

    def _run(self, job: Job) -> None:
        """Runs a job that has not ended, unless another process does, or it has to wait."""
        if job.after is None or job.after.record:
            with (
                suppress(Timeout),
                FileLock(self.cells / f"{job.folder.name}.lock", timeout=0),
            ):
                if not job.record:
                    job.run()

    def in_time(self, seconds: float) -> bool:
        """True until so many seconds are used by this command and by runs that have ended."""
        # Not those that another process is writing.
        records = map(read_json, self.cells.glob("[!.]*.json"))
        ended = [(record["began"], record["ended"]) for record in records]
        return covered([(self.began, time.time()), *ended]) < seconds

    def once(self, file: Path, make: Callable[[], Record]) -> Record:
        """A decision in a file, made by the process of shard 0 that comes first. Its UserError is
        that of the other shards, too."""
        refused = self.cells / f"{file.name}.refused"
        if self.shard[0] == 0:
            with FileLock(self.cells / f"{file.name}.lock"):
                remove(refused)
                try:
                    if not file.is_file():
                        write_json(file, make())
                except UserError as error:
                    write_text(refused, str(error))
                    raise
        elif not file.is_file():
            say(f"waiting for {file}, which shard 0 writes")
        while not file.is_file():
            if refused.is_file():
                raise UserError(f"shard 0: {refused.read_text('utf-8')}")
            time.sleep(POLL_SECONDS)
        return read_json(file)


def read_predictions(run: Path) -> Predictions:
    """Content of predictions.npz, in the order of the data."""
    with np.load(run / FILE) as file:
        order, names = np.argsort(file["indices"]), [each.name for each in fields(Predictions)]
        arrays: dict[str, Any] = {name: file[name][order] for name in names if name in file}
    return Predictions(**arrays)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Predictions of several sets as those of one, whose indices follow one another."""
    names = [name for name, values in vars(parts[0]).items() if isinstance(values, np.ndarray)]
    whole: dict[str, Any] = {n: np.concatenate([vars(part)[n] for part in parts]) for n in names}
    first = np.arange(len(parts)) << _INDEX_BITS
    indices = np.concatenate([at + part.indices for at, part in zip(first, parts, strict=True)])
    return Predictions(**{**whole, "indices": indices})


def of_same_images(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs, with the images alone that all have, as a run may have skipped some."""
    shared = reduce(np.intersect1d, [answers.indices for pair in pairs for answers in pair])

    def cut(answers: Predictions) -> Predictions:
        rows = np.searchsorted(answers.indices, shared)
        every = vars(answers).items()
        arrays: dict[str, Any] = {n: v[rows] for n, v in every if isinstance(v, np.ndarray)}
        return replace(answers, **arrays)

    return [(cut(before), cut(after)) for before, after in pairs]


def covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Length of the union of intervals (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total
