"""The finishers of a run: rows of a table, called by its first process alone at its end."""

import os
import shlex
from pathlib import Path
from typing import Protocol

from vit.console import is_first_process, note, say
from vit.errors import MESSAGE, UserError, shorten
from vit.runs.records import SUMMARY, Record, read_summary
from vit.signals import Stopped, received
from vit.tables import resolve, rows
from vit.writing import write_json

STRICT = "VIT_STRICT"
"""Environment variable; 1: a finisher's failure is the command's."""


class Finisher(Protocol):
    """A row of the table `finishers`."""

    def __call__(self, run: Path, /) -> None:
        """Makes something of a finished run, from its directory alone, which is locked."""
        ...


def finish_rest(run: Path, *, again: bool = False) -> str:
    """Calls the finishers that are not done, or `again` all of them; summary.json records each.

    A failure is a note. Returns the run's main result. Stopped after a signal, which leaves the run
    finished.
    """
    if not is_first_process():
        return ""
    states: Record = {} if again else read_summary(run).get("finishers") or {}
    command = f"`vit report {shlex.quote(str(run))}`"
    try:
        for name, row in rows("finishers").items():
            if states.get(name) != "done":
                states[name] = _state(row, run)
                write_json(run / SUMMARY, {**read_summary(run), "finishers": states})
            if states[name] != "done":
                note(f"finisher {name} {states[name]}; {command} tries again")
    except BaseException as error:
        if not (number := received()):
            raise
        stop = Stopped(number)
        stop.announced = True
        say(f"stopped; {run} is finished, and {command} makes the rest")
        raise stop from error
    return f"{read_summary(run).get('headline', '')}"


def _state(row: str, run: Path) -> str:
    """done, or how a finisher failed."""
    try:
        finisher: Finisher = resolve(row)
        finisher(run)
    except Exception as error:
        if received() or os.environ.get(STRICT) == "1":
            raise
        why = f"{error}" if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return f"failed: {shorten(' '.join(why.split()), MESSAGE)}"
    return "done"
