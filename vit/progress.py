"""Progress of long work on stderr: a bar on a terminal, a line per tenth of the work elsewhere."""

import sys
import time
from types import TracebackType

PATIENCE = 2.0
"""Seconds before a log file gets its first line, so that short work writes nothing."""


class Meter:
    """Counts `total` things, in units such as "img", with their rate and the remaining time.

    A terminal gets a bar that is redrawn; a file or a pipe gets at most ten lines.
    """

    def __init__(self, name: str, total: int, unit: str) -> None:
        self.name, self.total, self.unit = name, total, unit
        self.done = 0

    def __enter__(self) -> "Meter":
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._start, self._tenths, self._bar = time.monotonic(), 0, None
        console = Console(stderr=True)
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:3.0f}%"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[rate]}"),
                console=console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(self.name, total=self.total, rate="")
            self._bar.start()
        return self

    def show(self, name: str) -> None:
        """Names what is worked on from now on."""
        self.name = name
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def advance(self, count: int = 1) -> None:
        """`count` more are done."""
        self.done += count
        elapsed = max(time.monotonic() - self._start, 1e-9)
        speed = self.done / elapsed
        rate = f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"
        tenths = 10 * self.done // max(self.total, 1)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, rate=rate)
        elif tenths > self._tenths and elapsed > PATIENCE:
            self._tenths = tenths
            left = (self.total - self.done) / speed
            line = f"{self.name}  {self.done / self.total:4.0%}  {rate}  ETA {left:,.0f} s"
            print(line, file=sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
