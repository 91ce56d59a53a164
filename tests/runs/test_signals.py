"""SIGINT and SIGTERM end `vit fit` at any moment with their status, and without a traceback."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command import TINY
from vit import signals

# Sends a signal to its own process when a module is looked for.
SIGNAL_AT = """\
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
from vit.cli.main import entry
entry()
"""


@pytest.mark.parametrize(
    ("name", "number"),
    [("torch", signal.SIGTERM), ("lightning.pytorch", signal.SIGINT)],
)
def test_a_signal_during_imports_ends_the_command(
    name: str, number: int, tmp_path: Path, deadline: Callable[[float], float]
) -> None:
    code = SIGNAL_AT.format(name=name, number=int(number))
    command = [sys.executable, "-c", code, "fit", "-c", "quickstart"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=deadline(60)
    )
    assert (done.returncode, done.stderr) == (128 + number, "vit: stopped\n")


@pytest.mark.parametrize(("number", "processes"), [(signal.SIGINT, 1), (signal.SIGTERM, 2)])
def test_a_run_with_loading_workers_is_saved_and_says_how_it_continues(
    number: int, processes: int, photos: Path, deadline: Callable[[float], float]
) -> None:
    args = ["fit", "-c", "cifar10", "--data.root", str(photos), *TINY, "--run_dir=my run"]
    args += ["--data.loading.num_workers=2", f"--trainer.devices={processes}"]
    command = [sys.executable, "-m", "vit", *args, "--trainer.max_epochs=100000"]
    checkpoints = photos.parent / "my run" / "checkpoints"
    where: dict[str, Any] = {"cwd": photos.parent, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **where) as process:
        try:
            while not (checkpoints / "best.ckpt").is_file():
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(number)
            err = process.communicate(timeout=deadline(60))[1]
        finally:
            process.kill()
    assert process.returncode == 128 + number, err
    assert err.count("stopped; vit fit --run_dir 'my run' continues") == 1
    assert "Traceback" not in err
    assert (checkpoints / "last.ckpt").is_file()


def test_a_second_sigterm_ends_at_once_unless_a_launcher_has_doubled_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached = []
    with pytest.raises(signals.Stopped) as stop, signals.handled(), signals.deferred():
        for seconds in (signals.DOUBLED_SECONDS, signals.DOUBLED_SECONDS, -1.0):
            monkeypatch.setattr(signals, "DOUBLED_SECONDS", seconds)
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append(seconds)
    assert stop.value.code == 143 and len(reached) == 2


def test_sigterm_after_ctrl_c_waits_for_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "DOUBLED_SECONDS", -1.0)
    reached = False
    with pytest.raises(signals.Stopped) as stop, signals.handled(), signals.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        reached = True
    assert reached and stop.value.code == 130
