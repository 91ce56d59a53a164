"""Runs of `vit fit` in a benchmark: each is trained once, also across interruptions."""

import csv
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from vit.transfer.cells import run_cell as run_or_reuse


def run_cell(arguments: list[str], folder: Path) -> dict[str, Any]:
    """summary.json of `vit fit ARGUMENTS --run_dir folder`; a finished run is reused.

    An interrupted run is resumed from its checkpoint. The run's output is in folder/log.txt.
    """
    print(f"{folder} ...", end=" ", file=sys.stderr, flush=True)
    began = time.monotonic()
    summary, reused = run_or_reuse(arguments, folder)
    how = "reused" if reused else f"{time.monotonic() - began:.0f} s"
    print(how, file=sys.stderr)
    return summary


def note_options(options: object, folder: Path) -> None:
    """Records the options of a run next to `folder`; SystemExit if it was made with others."""
    note = folder.parent / f"{folder.name}.json"
    if note.is_file() and json.loads(note.read_text()) != options:
        raise SystemExit(
            f"{folder} was made with other options (see {note}); choose another --runs"
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(options))


def write_manifest(rows: list[tuple[str, str, str]], file: Path) -> None:
    """A CSV of images (path, label, split), with paths from its own folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "label", "split"))
        writer.writerows((os.path.relpath(path, file.parent), *rest) for path, *rest in rows)
