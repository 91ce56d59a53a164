"""Progress of long work on stderr: a bar on a terminal, a line per tenth of the work elsewhere."""

import sys
import time
from types import TracebackType

PATIENCE = 2.0
"""Seconds before a log file gets its first line, so that short work writes nothing."""
BRIEF = 1.0
"""Seconds before work that is often short gets a bar."""


class Meter:
    """Counts `total` things, in units such as "img", with their rate and the remaining time.

    A terminal gets a bar that is redrawn; a file or a pipe gets at most ten lines, and none where
    the total is not known (0). The bar of `brief` work appears after a second and goes at its end.
    """

    def __init__(self, name: str, total: float, unit: str, *, brief: bool = False) -> None:
        self.name, self.total, self.unit, self.brief = name, total, unit, brief
        self.done = self._begun = 0.0

    def __enter__(self) -> "Meter":
        self._start, self._tenths, self._bar = time.monotonic(), 0, None
        self._hidden = self.brief
        if not self.brief:
            self._open()
        return self

    def _open(self) -> None:
        """Starts the bar where stderr is a terminal."""
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
        """`done` of `total` are there before the work begins."""
        self.done = self._begun = done
        self.total = total
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None, share=self._share())

    def show(self, name: str) -> None:
        """Names what is worked on from now on."""
        self.name = name
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def advance(self, count: float = 1) -> None:
        """`count` more are done."""
        self.done += count
        elapsed = max(time.monotonic() - self._start, 1e-9)
        if self._hidden and elapsed > BRIEF:
            self._open()
        speed = (self.done - self._begun) / elapsed
        rate = f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s"
        tenths = int(10 * self.done / self.total) if self.total else 0
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, share=self._share(), rate=rate)
        elif tenths > self._tenths and elapsed > PATIENCE:
            self._tenths = tenths
            left = (self.total - self.done) / speed
            line = f"{self.name}  {self._share()}  {rate}  ETA {left:,.0f} s"
            print(line, file=sys.stderr, flush=True)

    def _share(self) -> str:
        """Of the total, or the count where that is not known."""
        return f"{self.done / self.total:4.0%}" if self.total else f"{self.done:,.0f} {self.unit}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
