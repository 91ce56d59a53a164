"""Cells stopped by signals: nothing is trained twice, nothing foreign is written to."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vit.errors import UserError
from vit.transfer import cells

# Replaces `vit fit`: saves and stops on SIGTERM, ends when a file named go exists.
STAND_IN = """\
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--run_dir") + 1])
def stop(*_):
    (folder / "last.ckpt").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
with open("calls.txt", "a") as calls:
    print(*sys.argv[1:], (folder / "last.ckpt").exists(), file=calls)
while folder.name == "seed-1" and not os.path.exists("go"):
    time.sleep(0.02)
(folder / "summary.json").write_text(json.dumps({"finished": True}))
"""
DRIVER = """\
import sys
from pathlib import Path
from vit.transfer import cells
from vit.transfer.cells import alone_in, run_cell
cells.FIT = (sys.executable, "stand_in.py")
try:
    with alone_in(Path(".")):
        for seed in range(3):
            print(run_cell(["-c", "x"], Path(f"seed-{seed}"))[1], flush=True)
except KeyboardInterrupt:
    print("stopped")
"""


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing happened for thirty seconds")


def calls_made(folder: Path) -> list[str]:
    file = folder / "calls.txt"
    return file.read_text().splitlines() if file.is_file() else []


def drive(folder: Path) -> subprocess.Popen[str]:
    (folder / "stand_in.py").write_text(STAND_IN)
    (folder / "driver.py").write_text(DRIVER)
    root = str(Path(__file__).parents[2])
    return subprocess.Popen(
        [sys.executable, "driver.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_cell_save_and_the_next_call_continues_it(
    tmp_path: Path, deadline: Callable[[float], float], number: int
) -> None:
    first = drive(tmp_path)
    wait_for(lambda: len(calls_made(tmp_path)) == 2)
    first.send_signal(number)
    out, err = first.communicate(timeout=deadline(60))
    assert (out, err) == ("False\nstopped\n", "")
    (tmp_path / "go").touch()
    assert drive(tmp_path).communicate(timeout=deadline(60))[0] == "True\nFalse\nFalse\n"
    # The same command again, which `vit fit` continues.
    calls = [f"-c x --run_dir seed-{seed}" for seed in (0, 1, 1, 2)]
    saved = (False, False, True, False)
    assert calls_made(tmp_path) == [f"{c} {s}" for c, s in zip(calls, saved, strict=True)]


def test_a_call_waits_for_another_in_the_same_folder(
    tmp_path: Path, deadline: Callable[[float], float]
) -> None:
    first = drive(tmp_path)
    wait_for(lambda: len(calls_made(tmp_path)) == 2)
    second = drive(tmp_path)
    assert second.stderr is not None
    assert "waiting: another `vit transfer`" in second.stderr.readline()
    (tmp_path / "go").touch()
    assert first.communicate(timeout=deadline(60))[0] == "False\nFalse\nFalse\n"
    assert second.communicate(timeout=deadline(60))[0] == "True\nTrue\nTrue\n"


def test_a_summary_without_the_final_score_is_not_finished(tmp_path: Path) -> None:
    for text in ('{"finished": false}', "{}", '{"finished":'):
        (tmp_path / "summary.json").write_text(text)
        assert cells.finished(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"finished": true}')
    assert cells.finished(tmp_path) == {"finished": True}


def test_a_folder_of_someone_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way"):
        cells.run_cell(["-c", "x"], tmp_path / "seed-0")
    assert os.listdir(tmp_path / "seed-0") == ["thesis.txt"]
