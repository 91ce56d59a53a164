"""Two processes on one machine (gloo) compute what one does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import ddp_run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def results(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What one process alone, and each of two together, have written."""
    folder = tmp_path_factory.mktemp("ddp")
    ddp_run.main(str(photos), 1, str(folder / "one"))
    subprocess.run(
        [sys.executable, ddp_run.__file__, str(photos), "2", str(folder / "two")],
        check=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    files = [folder / name for name in ("one.0", "two.0", "two.1")]
    return [torch.load(file, weights_only=True) for file in files]


def test_training_gives_the_weights_of_one_process_with_the_whole_batch(results) -> None:
    one, first, second = (result["weights"] for result in results)
    for name, expected in one.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], expected, rtol=0, atol=1e-5, msg=name)


def test_odd_sets_are_scored_exactly_as_by_one_process(results) -> None:
    one, first, second = (result["metrics"] for result in results)
    assert {"val/acc1", "test/acc1", "test/f1", "test/ece", "test/loss"} <= one.keys()
    assert first == second
    for name, value in one.items():
        exact = name.endswith(("acc1", "f1"))
        assert first[name] == (value if exact else pytest.approx(value, rel=1e-6, nan_ok=True))


def test_a_process_with_an_empty_batch_takes_part(results) -> None:
    assert "many/test/map" in results[1]["metrics"].keys() & results[0]["metrics"].keys()
