"""Runs are made once and never taken for others; rows are means over seeds."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib import harness

WRITE = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
(folder / "made").open("a").write("x")
(folder / "summary.json").write_text(json.dumps({"finished": True, "n": 3}))
"""


def test_a_finished_run_is_reused_and_an_unfinished_one_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "seed-0"
    command = [sys.executable, "-c", WRITE, str(folder)]
    assert harness.run_once(command, folder, ["-c", "a"])["n"] == 3
    assert harness.run_once(command, folder, ["-c", "a"])["n"] == 3
    assert (folder / "made").read_text() == "x" and "reused" in capsys.readouterr().err
    (folder / "summary.json").write_text('{"finished": false}')
    harness.run_once(command, folder, ["-c", "a"])
    assert (folder / "made").read_text() == "xx"
    with pytest.raises(SystemExit, match="was made with other options"):
        harness.run_once(command, folder, ["-c", "b"])


def test_a_run_that_fails_ends_the_command_with_its_last_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    with pytest.raises(SystemExit, match=r"exit status 3\): why; see"):
        harness.run_once(command, tmp_path / "run", None)


def test_a_row_has_mean_and_spread_over_the_seeds_and_no_local_path() -> None:
    facts: dict[str, Any] = {"command": "vit fit --data.root /home/me/photos", "split": "test"}
    facts |= dict.fromkeys(("images", "precision", "hardware", "versions"), "as it is")
    facts |= {name: 2.0 for name in harness.KEPT}
    metrics = [{"test/acc1": value, "val/acc1": 0.1} for value in (0.5, 0.75)]
    row = harness.seeds_row("both", [{**facts, "metrics": each} for each in metrics])
    assert row["n"] == 2 and row["command"] == "vit fit --data.root photos"
    assert row["mean"] == {"test/acc1": 0.625}
    assert row["std"]["test/acc1"] == pytest.approx(statistics.stdev((0.5, 0.75)))
    assert row["steps"] == 2
    alone = harness.seeds_row("one", [{**facts, "metrics": metrics[0]}])
    assert alone["std"] == {"test/acc1": None}


@pytest.mark.parametrize(
    ("options", "written"),
    [([], "standard.json"), (["--quick"], None), (["--quick", "--results", "own"], "own")],
)
def test_quick_writes_only_where_it_is_told(
    options: list[str],
    written: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(harness, "results_path", lambda name: Path(f"{name}.json"))
    harness.publish([1], harness.arguments("A script.").parse_args(options), "standard")
    assert json.loads(capsys.readouterr().out) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ([written] if written else [])
