"""Numbers, times and commands as text. Imports nothing heavy: the command line uses it."""

import shlex
from collections.abc import Mapping
from math import isnan
from pathlib import Path

NAMES = {
    "train_seconds": "training time",
    "train_cpu_seconds": "CPU time of it",
    "peak_memory_gb": "peak memory, GB",
    "memory_gb": "memory, GB",
}
"""Titles for unclear keys of summary.json."""


def percent(share: float, num_images: int = 0) -> str:
    """'97.5 %', with a second decimal from ten thousand images on; NaN is a dash."""
    if isnan(share):
        return "-"
    return f"{100 * share:.{2 if num_images >= 10_000 else 1}f}\N{NO-BREAK SPACE}%"


def duration(seconds: float) -> str:
    """'1 h 02 min 05 s', from the largest non-zero unit; short times have a decimal."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02} min {rest:02} s"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def flat(group: object, name: str = "") -> list[tuple[str, str]]:
    """A JSON value as (name, text) rows with nested names joined; empty values have no row."""
    if isinstance(group, Mapping):
        return [row for key in group for row in flat(group[key], f"{name} {key}".strip())]
    if group is None or group == "" or group == []:
        return []
    timed = name.endswith("_seconds")
    words = name.removesuffix("_seconds") + " time" if timed else name
    words = NAMES.get(name, words.replace("_", " "))
    if isinstance(group, bool):
        return [(words, "yes" if group else "no")]
    if isinstance(group, int | float) and timed:
        return [(words, duration(group))]
    if isinstance(group, int):
        return [(words, f"{group:,}")]
    if isinstance(group, list | tuple):
        return [(words, ", ".join(map(str, group)))]
    return [(words, f"{group:.6g}" if isinstance(group, float) else str(group))]


def commands(run_dir: Path) -> list[tuple[str, str]]:
    """(purpose, command) for the use of a finished run."""
    shown = run_dir.resolve()
    if shown.is_relative_to(Path.cwd()):
        shown = shown.relative_to(Path.cwd())
    run = shown.as_posix()
    python = (
        f"import vit\n\nclassifier = vit.load({run!r})\nclassifier.predict(['photo.jpg'], top=5)"
    )
    return [
        ("Name what is in a photo", f"vit classify {shlex.quote(run)} photo.jpg"),
        ("The same in Python", python),
        ("Score it again", f"vit test {shlex.quote(run)}"),
    ]
