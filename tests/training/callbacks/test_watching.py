"""No process waits for ever for one that was killed, stopped or has failed; a line says why."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training import stop_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(photos: Path, tmp_path_factory: pytest.TempPathFactory, deadline) -> list[Any]:
    folder = tmp_path_factory.mktemp("lost")
    return stop_run.outcomes("LOST", photos, folder, deadline(60))


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
