"""A finished run that is changed by nobody else."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vit.errors import UserError
from vit.runs.directory import locked
from vit.runs.records import read_summary


@contextmanager
def finished_run(folder: Path) -> Iterator[dict[str, Any]]:
    """Locks a run; yields its summary. UserError for a run that is locked, or not finished."""
    with locked(folder):
        summary = read_summary(folder)
        if summary.get("finished") is not True:
            command = f"vit fit --run_dir {shlex.quote(str(folder))}"
            raise UserError(f"{folder} is a run without a finished model; continue it: {command}")
        yield summary
