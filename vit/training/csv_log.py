"""metrics.csv: one row per logged step, appended as the run goes, continued by a resumed run."""

import csv
import time
from contextlib import suppress
from pathlib import Path

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from vit.writing import atomic, naming

Cell = float | str


class MetricsCsv(Logger):
    """Writes `metrics.csv` into `directory`.

    Unlike Lightning's CSVLogger, a resumed run keeps the rows up to its checkpoint, and losses and
    scores of a step share a row. The file does not change before the first new row.

    Args:
        directory: Folder of the run.
        resumed_step: Optimizer steps of the checkpoint to continue; None for a new run.
    """

    def __init__(self, directory: str | Path, resumed_step: int | None = None) -> None:
        super().__init__()
        self.path = Path(directory) / "metrics.csv"
        self._rows: list[dict[str, Cell]] = []
        self._columns: list[str] = []
        self._written = 0
        self._logged = False
        self._started = time.monotonic()
        if resumed_step is not None and self.path.is_file():
            self._read(resumed_step)

    def _read(self, resumed_step: int) -> None:
        """Takes the readable rows of steps before `resumed_step`."""
        with self.path.open(newline="", encoding="utf-8", errors="replace") as file:
            # A crash may have cut the last line short.
            for row in csv.DictReader(line for line in file if line.endswith("\n")):
                with suppress(KeyError, TypeError, ValueError):
                    used, step = float(row["seconds"]), int(row["step"])
                    # Lightning numbers steps from 0: row n is of step n + 1.
                    if step < resumed_step and None not in row:
                        self._rows.append(row)
                        self._started, self._columns = time.monotonic() - used, list(row)

    name = version = ""  # pyright: ignore

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @rank_zero_only
    def log_hyperparams(self, params: object, *_: object, **__: object) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._logged = True
        step = len(self._rows) if step is None else step
        row: dict[str, Cell] = {"step": step, **metrics}
        row["seconds"] = round(time.monotonic() - self._started, 3)
        if self._rows and int(self._rows[-1]["step"]) == step:
            self._rows[-1].update(row)  # losses and scores of one step share a row
            if self._written == len(self._rows):
                self._written = 0  # it is in the file, which has to be written again
        else:
            self._rows.append(row)

    @rank_zero_only
    def save(self) -> None:
        if not self._logged:
            return
        new = self._rows[self._written :]
        columns = list(dict.fromkeys([*self._columns, *(name for row in new for name in row)]))
        if self._written and columns == self._columns:
            with naming(self.path), self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, columns).writerows(new)
        else:
            with atomic(self.path) as path, path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self._rows)
        self._columns, self._written = columns, len(self._rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
