"""The command that docs/robustness.md shows, on a few small pictures."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.papers.robustness import run as benchmark


def test_the_quick_run_ends_well_and_is_not_made_twice(
    training_photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys,
) -> None:
    args = ["--data", str(training_photos), "--out", str(tmp_path), "--quick"]
    monkeypatch.setattr(sys, "argv", ["", *args])
    benchmark.main()
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (first["images"], first["pictures"], len(first["rows"])) == (4, "generated", 15)
    made = (tmp_path / "run" / "robustness.json").stat().st_mtime_ns
    benchmark.main()
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["rows"] == first["rows"]
    assert (
        "reused" in printed.err
        and (tmp_path / "run" / "robustness.json").stat().st_mtime_ns == made
    )
