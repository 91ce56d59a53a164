"""The miniatures of VTAB-1k run by the command that docs/vtab.md shows."""

import sys
from pathlib import Path

import pytest

from benchmarks.papers.vtab import run as benchmark


def test_the_quick_run_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--quick"])
    with pytest.raises(SystemExit) as done:
        benchmark.main()
    assert done.value.code == 0
    assert "| structured | 1 of 8 |" in capsys.readouterr().out
