"""Lines and progress on stderr; of several processes that train together, the first one prints."""

import os
import sys
import time
from typing import TYPE_CHECKING

from vit.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0
"""Seconds before progress is shown, so that short work prints nothing."""
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK")
"""Environment variables in which launchers number processes."""


def is_first_process() -> bool:
    """True for the process that prints and writes files."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def say(text: str, *, everywhere: bool = False) -> None:
    """Prints to stderr, from the first process; with `everywhere` from every process."""
    if everywhere or is_first_process():
        print(_lines(text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Prints a result to stdout."""
    print(_lines(text))


def _lines(text: str) -> str:
    """The text with its control characters, such as those in names of files, escaped."""
    return "\n".join(map(printable, text.split("\n")))


def note(text: str) -> None:
    """Prints "note: TEXT" to stderr."""
    say(f"note: {text}")


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Meter:
    """Progress towards `total` (0: unknown) in units such as "img", with rate and time left.

    After a second, a terminal shows a bar; a file or a pipe gets at most ten lines. With
    `everywhere`, every process shows its progress, not the first alone.
    """

    def __init__(
        self, name: str, total: float, unit: str, *, everywhere: bool = False, shown: bool = True
    ) -> None:
        self.name, self.total, self.unit = printable(name), total, unit
        self.done = self._begun = 0.0
        self._shown = shown and (everywhere or is_first_process())
        self._bar: Progress | None = None
        self._tenths = 0

    def __enter__(self) -> "Meter":
        self._start = time.monotonic()
        return self

    def begin(self, done: float, total: float) -> None:
        """Sets the count from which the work starts."""
        self.done = self._begun = done
        self.total = total

    def show(self, name: str) -> None:
        """Shows another name for the work."""
        self.name = name
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=name)

    def advance(self, count: float = 1) -> None:
        """Adds `count` to the progress."""
        self.done += count
        elapsed = max(time.monotonic() - self._start, 1e-9)
        if not self._shown or elapsed <= PATIENCE:
            return
        speed = (self.done - self._begun) / elapsed
        rate = f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"
        share = f"{self.done / self.total:4.0%}" if self.total else f"{self.done:,.0f} {self.unit}"
        self._bar = self._bar or _bar(self.name)
        if self._bar is not None:
            counts = {"completed": self.done, "total": self.total or None}
            self._bar.update(self._bar.task_ids[0], **counts, share=share, rate=rate)
            return
        tenths = int(10 * self.done / self.total) if self.total else 0
        if tenths > self._tenths:
            self._tenths = tenths
            left = (self.total - self.done) / speed
            say(f"{self.name}  {share}  {rate}  ETA {clock(left)}", everywhere=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(name: str) -> "Progress | None":
    """A progress bar; None if stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[share]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
        console=console,
        refresh_per_second=4,
    )
    bar.add_task(name, total=None, share="", rate="")
    bar.start()
    return bar
