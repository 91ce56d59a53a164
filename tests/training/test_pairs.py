"""Two processes on one machine (gloo) compute what one does, and end together."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import pairs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def ends(
    training_photos: Path, tmp_path_factory: pytest.TempPathFactory, deadline
) -> tuple[Path, Any]:
    """The folder that pairs write to, and the ends of each of their cases."""
    folder = tmp_path_factory.mktemp("pairs")
    return folder, pairs.ends_of(str(training_photos), folder, deadline(60))


@pytest.fixture(scope="module")
def results(ends: tuple[Path, Any], training_photos: Path) -> list[Any]:
    """What one process alone, and each of two together, have computed."""
    folder = ends[0]
    pairs.train_and_score(str(training_photos), 1, str(folder / "one"))
    files = [folder / name for name in ("one.0", "two.0", "two.1")]
    return [torch.load(file, weights_only=True) for file in files]


def test_training_gives_the_weights_of_one_process_with_the_whole_batch(results) -> None:
    one, first, second = (result["weights"] for result in results)
    for name, expected in one.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], expected, rtol=0, atol=1e-5, msg=name)


def test_the_first_process_settles_the_length_for_both(results) -> None:
    one, first, second = (result["settled"] for result in results)
    assert first == second == one and one[0][0] == 4 and one[0][1] < 10


def test_odd_sets_and_empty_batches_are_scored_exactly_as_by_one_process(results) -> None:
    one, first, second = (result["metrics"] for result in results)
    names = {"val/acc1", "test/acc1", "test/f1", "test/ece", "test/loss", "many/test/map"}
    assert names <= one.keys()
    assert first == second
    for name, value in one.items():
        exact = name.endswith(("acc1", "f1"))
        assert first[name] == (value if exact else pytest.approx(value, rel=1e-6, nan_ok=True))


# 44 images in batches of 4 on two processes are 5 steps.
STEPS = {"on_before_backward": 1, "setup": None}


@pytest.mark.parametrize("case", pairs.STOPPED)
def test_both_processes_end_saved_by_a_signal_to_one(case: Any, ends: tuple[Path, Any]) -> None:
    place, _, sent = case
    statuses, step, _ = ends[1][case]
    status = 0 if place == "nowhere" else 128 + sent
    assert statuses == [status, status]
    assert step == STEPS.get(place, 5)


@pytest.mark.parametrize("case", pairs.LOST)
def test_a_process_that_loses_the_other_ends_with_one_line(
    case: Any, ends: tuple[Path, Any]
) -> None:
    _, target, sent = case
    statuses, _, lines = ends[1][case]
    other = 1 - target
    assert statuses[other] == 1  # None if it still waited at the deadline
    assert statuses[target] == (-signal.SIGKILL if sent else 2)
    assert lines[other].startswith(f"vit: rank {other} has lost another process of the run at step")
    if not sent:
        assert lines[target] == "vit: b/3.png cannot be read"
