"""The miniatures of VTAB-1k run by the command that docs/vtab.md shows."""

import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import Load


def test_the_quick_run_ends_well(
    load_benchmark: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    benchmark = load_benchmark("vtab")
    monkeypatch.setattr(sys, "argv", ["", "--out", str(tmp_path), "--quick"])
    with pytest.raises(SystemExit) as done:
        benchmark.main()
    assert done.value.code == 0
    assert "| structured | 1 of 8 |" in capsys.readouterr().out
