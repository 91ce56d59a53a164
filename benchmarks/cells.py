"""Cells of a benchmark: runs of `vit fit` that are made once, whatever happens in between."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from vit.transfer.cells import run_cell as run_or_reuse


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


def note_options(made: object, folder: Path) -> None:
    """Writes beside `folder` how its run is made; SystemExit where one was made with others."""
    note = folder.parent / f"{folder.name}.json"
    if note.is_file() and json.loads(note.read_text()) != made:
        raise SystemExit(
            f"{folder} was made with other options (see {note}); choose another --runs"
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(made))
