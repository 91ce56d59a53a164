"""A signal to any process of a run ends all of them at one step, saved, with one status."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.training import stop_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(photos: Path, tmp_path_factory: pytest.TempPathFactory, deadline) -> list[Any]:
    folder = tmp_path_factory.mktemp("stop")
    return stop_run.outcomes("STOPPED", photos, folder, deadline(60))


@pytest.mark.parametrize("number", range(len(stop_run.STOPPED)))
def test_both_processes_end_saved_by_a_signal_to_one(number: int, results: list[Any]) -> None:
    place, _, sent, statuses, step, _ = results[number]
    # 44 images in batches of 4 on two processes are 5 steps per epoch.
    expected = {
        "on_before_backward": 1,
        "setup": None,
        "on_validation_batch_start": 5,
        "on_train_epoch_end": 5,
        "on_test_batch_start": 10,
        "nowhere": 10,
    }
    status = 0 if place == "nowhere" else 128 + sent
    assert statuses == [status, status]
    assert step == expected[place]


@pytest.fixture(scope="module")
def lost(photos: Path, tmp_path_factory: pytest.TempPathFactory, deadline) -> list[Any]:
    folder = tmp_path_factory.mktemp("lost")
    return stop_run.outcomes("LOST", photos, folder, deadline(60))


@pytest.mark.parametrize("number", range(len(stop_run.LOST)))
def test_a_process_that_loses_the_other_ends_with_one_line(number: int, lost: list[Any]) -> None:
    _, target, sent, statuses, _, lines = lost[number]
    other = 1 - target
    assert statuses[other] == 1  # None if it still waited at the deadline
    assert statuses[target] == (-signal.SIGKILL if sent else 2)
    assert lines[other].startswith(f"vit: rank {other} has lost another process of the run at step")
    if not sent:
        assert lines[target] == "vit: b/3.png cannot be read"
