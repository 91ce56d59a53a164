"""Cells of a benchmark: runs of `vit fit` that are made once, whatever happens in between."""

import sys
import time
from pathlib import Path
from typing import Any

from vit.cli.transfer_cells import run_cell as run_or_reuse


def run_cell(arguments: list[str], folder: Path) -> dict[str, Any]:
    """summary.json of `vit fit ARGUMENTS --run_dir folder`, trained only if it is not there yet.

    An interrupted run goes on from its checkpoint. The output of the run is in folder/log.txt.
    """
    print(f"{folder} ...", end=" ", file=sys.stderr, flush=True)
    began = time.monotonic()
    summary, reused = run_or_reuse(arguments, folder)
    how = "was there" if reused else f"{time.monotonic() - began:.0f} s"
    print(how, file=sys.stderr)
    return summary
