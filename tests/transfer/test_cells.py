"""Cells stopped by signals and kills: nothing is trained twice, nothing foreign is deleted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vit.errors import UserError
from vit.locking import FileLock, Locked
from vit.transfer import cells

# Replaces `vit fit`: saves and stops on SIGTERM, ends when a file named go exists.
STAND_IN = """\
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--run_dir") + 1])
def stop(*_):
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
with open("calls.txt", "a") as calls:
    print(folder.name, "last" in sys.argv, file=calls)
while folder.name == "seed-1" and not os.path.exists("go"):
    time.sleep(0.02)
text = {"metrics": {"test/acc1": 0.5}, "train_seconds": 1, "train_cpu_seconds": 1}
text["command"] = " ".join(sys.argv)
(folder / "summary.json").write_text(json.dumps(text))
"""
DRIVER = """\
import sys
from pathlib import Path
from vit.transfer import cells
from vit.transfer.cells import alone_in, run_cell
cells.FIT = (sys.executable, "stand_in.py")
try:
    with alone_in(Path(".")) as lock:
        for seed in range(3):
            print(run_cell(["-c", "x"], Path(f"seed-{seed}"), lock=lock)[1], flush=True)
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
    assert (tmp_path / "seed-1" / "checkpoints" / "last.ckpt").is_file()
    (tmp_path / "go").touch()
    assert drive(tmp_path).communicate(timeout=deadline(60))[0] == "True\nFalse\nFalse\n"
    assert calls_made(tmp_path) == ["seed-0 False", "seed-1 False", "seed-1 True", "seed-2 False"]


def test_after_a_kill_the_next_call_waits_for_the_cell_that_lives_on(
    tmp_path: Path, deadline: Callable[[float], float]
) -> None:
    first = drive(tmp_path)
    wait_for(lambda: len(calls_made(tmp_path)) == 2)
    first.kill()
    first.wait()
    second = drive(tmp_path)
    assert second.stderr is not None
    assert "waiting: another `vit transfer`" in second.stderr.readline()
    (tmp_path / "go").touch()
    assert second.communicate(timeout=deadline(60))[0] == "True\nTrue\nFalse\n"
    assert calls_made(tmp_path) == ["seed-0 False", "seed-1 False", "seed-2 False"]


@pytest.mark.skipif(sys.platform == "win32", reason="there a lock belongs to one process")
def test_after_an_error_the_folder_stays_locked_for_as_long_as_the_cell_lives(
    tmp_path: Path,
) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(ZeroDivisionError), cells.alone_in(tmp_path) as lock:
        assert lock is not None
        children.append(subprocess.Popen(sleep, pass_fds=(lock,)))
        _ = 1 / 0
    try:
        with pytest.raises(Locked):
            FileLock(tmp_path / ".lock").acquire()
    finally:
        children[0].kill()
        children[0].wait()
    with FileLock(tmp_path / ".lock"):
        pass


def test_a_folder_of_someone_else_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="is in the way"):
        cells.run_cell(["-c", "x"], tmp_path / "seed-0")
    assert (tmp_path / "seed-0" / "thesis.txt").is_file()
