"""metrics.csv: one row a logged step, appended as the run goes, continued by a resumed run."""

import csv
import os
import time
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only


class MetricsCsv(Logger):
    """Writes `metrics.csv` into `directory`.

    A resumed run keeps the rows up to its checkpoint, where Lightning's CSVLogger would delete the
    file; rows after the checkpoint are from steps that will be taken again, and go.

    Args:
        directory: Where the file lies.
        resumed_step: Optimizer steps taken at the checkpoint that the run continues from; None
            starts a new file.
    """

    def __init__(self, directory: str | Path, resumed_step: int | None = None) -> None:
        super().__init__()
        self.path = Path(directory) / "metrics.csv"
        self._rows: list[dict[str, Any]] = []
        self._columns: list[str] = ["step"]
        self._written = 0
        self._started = time.monotonic()
        if resumed_step is not None and self.path.is_file():
            with self.path.open(newline="") as file:
                # A crash may have cut the last line short.
                reader = csv.DictReader(line for line in file if line.endswith("\n"))
                self._columns = list(reader.fieldnames or ["step"])
                # Lightning numbers steps from 0: row n is of step n + 1.
                self._rows = [row for row in reader if int(row["step"]) < resumed_step]
            if self._rows and self._rows[-1].get("seconds"):
                self._started -= float(self._rows[-1]["seconds"])

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.path.parent)

    @property
    @rank_zero_experiment
    def experiment(self) -> "MetricsCsv":
        return self

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml has them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        step = len(self._rows) if step is None else step
        row: dict[str, Any] = {"step": step, **metrics}
        row["seconds"] = round(time.monotonic() - self._started, 3)
        if self._rows and int(self._rows[-1]["step"]) == step:
            self._rows[-1].update(row)  # losses and scores of one step share a row
            if self._written == len(self._rows):
                self._written = 0  # it is in the file, which has to be written anew
        else:
            self._rows.append(row)

    @rank_zero_only
    def save(self) -> None:
        new = [name for row in self._rows[self._written :] for name in row]
        columns = list(dict.fromkeys(self._columns + new))
        if len(columns) == len(self._columns) and self._written:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self._columns).writerows(self._rows[self._written :])
        else:
            self._columns = columns
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_suffix(".csv.tmp")
            with temporary.open("w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(self._rows)
            os.replace(temporary, self.path)
        self._written = len(self._rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()
