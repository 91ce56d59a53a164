"""The files of a run directory that need no training library to be read."""

import json
from pathlib import Path
from typing import Any

from vit.console import note
from vit.errors import UserError, check_types, did_you_mean_beside
from vit.recipes import read_options

LOCK, CONFIG, SUMMARY = ".lock", "config.yaml", "summary.json"
HEADER = "# vit: the resolved options of a run\n"
"""First line of our config.yaml, by which a run directory is known."""

Record = dict[str, Any]
"""Content of a YAML or JSON file, or a part of it: plain values."""


def is_run(folder: Path) -> bool:
    """The folder holds a run of ours."""
    try:
        with (folder / CONFIG).open(encoding="utf-8", errors="replace") as file:
            return file.readline() == HEADER
    except OSError:
        return False


def check_run(folder: Path) -> None:
    """UserError for a folder that holds no run, with the nearest names beside it."""
    if not is_run(folder):
        near = did_you_mean_beside(str(folder))
        raise UserError(f"{folder} is not a run directory: it has no config.yaml of a run{near}")


def recorded_options(run: Path) -> Record:
    """Content of a run's config.yaml; empty without one."""
    return read_options(run / CONFIG) if is_run(run) else {}


def read_summary(run: Path) -> Record:
    """Content of a run's summary.json; empty if it is missing, and, with a note, if damaged."""
    file = run / SUMMARY
    try:
        content: Record = json.loads(file.read_text(encoding="utf-8"))
        groups = dict.fromkeys(("metrics", "splits", "finishers"), dict | None)
        check_types(file, content, finished=bool | None, **groups)
        metrics: Record = content.get("metrics") or {}
        check_types(f"{file}: metrics", metrics, **dict.fromkeys(metrics, int | float))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        note(f"{file} is damaged, and left out: {error}")
        return {}
    return content
