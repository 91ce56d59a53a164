"""Lines and progress on stderr. Of several processes that train together, the first one speaks."""

import os
import sys
import time
from types import TracebackType

PATIENCE = 2.0
"""Seconds before the first line in a log file, so that short work writes nothing."""
BRIEF = 1.0
"""Seconds before the bar of `brief` work appears."""
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "NODE_RANK")
"""Environment variables by which launchers number processes."""


def is_first_process() -> bool:
    """Whether this process prints and writes files."""
    return all(os.environ.get(name, "0") == "0" for name in _RANKS)


def say(text: str, *, end: str = "\n", everywhere: bool = False) -> None:
    """Prints to stderr; `everywhere`: other processes than the first print, too."""
    if everywhere or is_first_process():
        print(text, end=end, file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Prints "note: TEXT" to stderr."""
    say(f"note: {text}")


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Meter:
    """Counts `total` things, in units such as "img", with their rate and the remaining time.

    A terminal gets a bar; a file or a pipe gets at most ten lines, and none if the total is unknown
    (0). The bar of `brief` work appears after a second and disappears at the end. `everywhere`:
    other processes than the first show theirs, too.
    """

    def __init__(
        self, name: str, total: float, unit: str, *, brief: bool = False, everywhere: bool = False
    ) -> None:
        self.name, self.total, self.unit, self.brief = name, total, unit, brief
        self.shown = everywhere or is_first_process()
        self.done = self._begun = 0.0

    def __enter__(self) -> "Meter":
        self._start, self._tenths, self._bar = time.monotonic(), 0, None
        self._hidden = self.brief and self.shown
        if self.shown and not self.brief:
            self._open()
        return self

    def _open(self) -> None:
        """Starts the bar if stderr is a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._hidden = False
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[share]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rate]}"),
                console=console,
                refresh_per_second=4,
                transient=self.brief,
            )
            self._task = self._bar.add_task(
                self.name, total=self.total or None, share=self._share(), rate=""
            )
            self._bar.start()

    def begin(self, done: float, total: float) -> None:
        """Sets the number that is done before the work starts."""
        self.done = self._begun = done
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, share=self._share())

    def show(self, name: str) -> None:
        """Sets the description of the current work."""
        self.name = name
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def advance(self, count: float = 1) -> None:
        """Adds `count` to the number done."""
        self.done += count
        elapsed = max(time.monotonic() - self._start, 1e-9)
        if self._hidden and elapsed > BRIEF:
            self._open()
        speed = (self.done - self._begun) / elapsed
        rate = f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"
        tenths = int(10 * self.done / self.total) if self.total else 0
        if self._bar is not None:
            total = self.total or None
            self._bar.update(
                self._task, completed=self.done, total=total, share=self._share(), rate=rate
            )
        elif self.shown and tenths > self._tenths and elapsed > PATIENCE:
            self._tenths = tenths
            left = (self.total - self.done) / speed
            say(f"{self.name}  {self._share()}  {rate}  ETA {clock(left)}", everywhere=True)

    def _share(self) -> str:
        """Percentage of the total, or the count if the total is unknown."""
        return f"{self.done / self.total:4.0%}" if self.total else f"{self.done:,.0f} {self.unit}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
