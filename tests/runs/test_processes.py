"""Several processes: those that the run does not know of, that differ, or that end."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TINY
from tests.runs.pair import pair
from vit.errors import UserError
from vit.runs.processes import check_launched


def trainer(processes: int) -> Any:
    return SimpleNamespace(world_size=processes)


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
TWO = ("--trainer.devices=2", "--run_dir=run")
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_a_run_of_one_process_is_refused_beside_others(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        check_launched(trainer(1))
    assert "has started 8 processes" in str(error.value)
    options = "--trainer.devices 4 --trainer.num_nodes 2 --trainer.strategy ddp"
    assert options in str(error.value)
    check_launched(trainer(8))


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # a batch script, without srun
        {**SRUN, "SLURM_JOB_NAME": "bash"},  # srun --ntasks 8 --pty bash
    ],
)
def test_one_process_is_enough_where_one_was_started(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_launched(trainer(1))


def test_processes_with_other_options_and_images_are_refused(
    tmp_path: Path, photos: Path, deadline: Callable[[float], float]
) -> None:
    other = shutil.copytree(photos, tmp_path / "other")
    (other / "red/00.jpg").rename(other / "blue/again.jpg")
    shared = ("fit", "-c", "cifar10", *TINY, *TWO)
    own = [[f"--data.root={photos}"], [f"--data.root={other}", "--trainer.gradient_clip_val=9"]]
    for rank, done in enumerate(pair(tmp_path, shared, own, seconds=deadline(120))):
        *_, line = done.err.splitlines()
        assert done.status == 2 and f"and rank {rank} differ" in line, done.err
        for name in ("data.root", "images.train", "trainer.gradient_clip_val"):
            assert name in line
    assert not (tmp_path / "run").exists()


def test_a_process_that_ends_before_it_joins_ends_the_run_in_one_line(
    tmp_path: Path, photos: Path
) -> None:
    code = (
        "from lightning.pytorch.strategies.launchers import subprocess_script\n"
        "subprocess_script._basic_subprocess_cmd = lambda: ['sh', '-c', 'kill -9 $$']\n"
        "from vit.cli.main import entry; entry()"
    )
    args = ["fit", "-c", "cifar10", f"--data.root={photos}", *TINY, *TWO]
    command = [sys.executable, "-c", code, *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "terminated with code -9" in done.stderr.splitlines()[-1]
