"""metrics.csv: one row per logged step, appended as the run goes, continued by a resumed run."""

import csv
import time
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from vit.console import note
from vit.writing import atomic, free_name


class MetricsCsv(Logger):
    """Writes `metrics.csv` into `directory`.

    A resumed run keeps the rows up to its checkpoint, where Lightning's CSVLogger would delete the
    file; rows after the checkpoint are from steps that will be taken again, and go. A file that
    cannot be read is renamed to metrics.csv.damaged, with a note, and a new one is started. Nothing
    is changed before the first row is written, so that a run that fails to start costs nothing.

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
        self._logged = False
        self._damage: str | None = None
        self._started = time.monotonic()
        if resumed_step is not None and self.path.is_file():
            self._read(resumed_step)

    def _read(self, resumed_step: int) -> None:
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                # A crash may have cut the last line short.
                reader = csv.DictReader(line for line in file if line.endswith("\n"))
                columns = list(reader.fieldnames or ["step"])
                if "step" not in columns:
                    raise ValueError("no column 'step'")
                # Lightning numbers steps from 0: row n is of step n + 1.
                rows = [row for row in reader if int(row["step"]) < resumed_step]
            if any(None in row or None in row.values() for row in rows):
                raise ValueError("rows of another length than the head")
            used = float(rows[-1].get("seconds") or 0) if rows else 0.0
        except (ValueError, KeyError, TypeError, csv.Error) as error:  # UnicodeDecodeError too
            self._damage = str(error)
            return
        self._columns, self._rows = columns, rows
        self._started -= used

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
        self._logged = True
        step = len(self._rows) if step is None else step
        row: dict[str, Any] = {"step": step, **metrics}
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
        self._set_aside()
        new = [name for row in self._rows[self._written :] for name in row]
        columns = list(dict.fromkeys(self._columns + new))
        if len(columns) == len(self._columns) and self._written:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerows(self._rows[self._written :])
        else:
            self._columns = columns
            with atomic(self.path) as temporary:
                with temporary.open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, columns)
                    writer.writeheader()
                    writer.writerows(self._rows)
        self._written = len(self._rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()

    def _set_aside(self) -> None:
        """Renames a damaged file, which is not overwritten."""
        if self._damage is None:
            return
        aside = free_name(self.path.with_name(f"{self.path.name}.damaged"))
        self.path.rename(aside)
        note(
            f"{self.path} could not be read ({self._damage}); it is {aside.name} now, and a new "
            "file was started"
        )
        self._damage = None
