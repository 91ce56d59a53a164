"""Runs are made once and never taken for others; every script can be imported."""

import json
import sys
from importlib import import_module
from pathlib import Path

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


def test_every_script_is_imported() -> None:
    for name in ("timm", "transformers"):
        pytest.importorskip(name)
    files = sorted((harness.ROOT / "benchmarks").rglob("*.py"))
    names = [".".join(file.relative_to(harness.ROOT).with_suffix("").parts) for file in files]
    assert len(names) > 60 and {import_module(name).__name__ for name in names} == {*names}
