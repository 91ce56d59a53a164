"""No process waits for ever for one that was killed, stopped or has failed; a line says why."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training import stop_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(photos: Path, tmp_path_factory: pytest.TempPathFactory, deadline) -> list[Any]:
    folder = tmp_path_factory.mktemp("lost")
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.stop_run", "LOST", str(photos), str(folder),
         str(deadline(60))],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


PLACES = {
    "on_train_batch_start": "training",
    "on_validation_batch_start": "validation",
    "on_save_checkpoint": "a save",
    "on_test_batch_start": "the final evaluation",
}


@pytest.mark.parametrize("number", range(len(stop_run.LOST)))
def test_the_other_process_ends_with_one_line(number: int, results: list[Any]) -> None:
    place, target, sent, statuses, _, lines = results[number]
    other = 1 - target
    assert statuses[other] == 1  # None if it still waited at the deadline
    assert statuses[target] == (-signal.SIGKILL if sent else 2)
    assert lines[other].startswith(f"vit: rank {other} of 2 waited at step ")
    assert f"({PLACES[place]}): rank {target} " in lines[other]
    if not sent:
        assert lines[other].endswith(": b/3.png cannot be read")
        assert lines[target] == "vit: b/3.png cannot be read"
