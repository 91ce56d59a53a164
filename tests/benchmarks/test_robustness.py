"""The command that docs/robustness.md shows, on a few small pictures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.papers.robustness import run as benchmark


def test_the_quick_run_ends_well_and_is_not_made_twice(
    training_photos: Path, tmp_path: Path, script: Callable[..., Any], vit_here: None
) -> None:
    options = ("--data", training_photos, "--out", tmp_path, "--quick")
    first = script(benchmark, *options)
    assert (first["images"], first["pictures"], len(first["rows"])) == (4, "generated", 15)
    made = (tmp_path / "run" / "robustness.json").stat().st_mtime_ns
    assert script(benchmark, *options)["rows"] == first["rows"]
    assert (tmp_path / "run" / "robustness.json").stat().st_mtime_ns == made
