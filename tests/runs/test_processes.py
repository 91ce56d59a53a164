"""Several processes: those that the run does not know of, that differ, or that end."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.command import TINY
from tests.killing import in_child
from tests.runs.pair import pair
from vit.cli.main import main
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
    assert "--trainer.strategy ddp --trainer.devices" in str(error.value)
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


def test_a_refused_start_of_two_processes_leaves_nothing(
    tmp_path: Path, photos: Path, deadline: Callable[[float], float]
) -> None:
    shared = ("fit", "-c", "cifar10", *TINY, f"--data.root={photos}", "--run_dir=run", "--steps=2")
    for done in pair(tmp_path, shared, seconds=deadline(120)):
        *_, line = done.err.splitlines()
        assert done.status == 2 and "torchrun has started 2 processes" in line, done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("end", "status", "named"),
    [("kill -9 $$", 1, "signal 9"), ("exit 130", 130, "exit status 130")],
)
def test_a_process_that_ends_before_it_joins_ends_the_run_in_one_line(
    end: str, status: int, named: str, tmp_path: Path, photos: Path
) -> None:
    def fit() -> int:
        sys.stderr, start = open(tmp_path / "err.txt", "w"), subprocess.Popen
        subprocess.Popen = lambda *_, **__: start(["sh", "-c", end])  # pyright: ignore
        os.chdir(tmp_path)
        return main(["fit", "-c", "cifar10", f"--data.root={photos}", *TINY, *TWO])

    assert in_child(fit) == status
    *_, line = (tmp_path / "err.txt").read_text().splitlines()
    assert line.startswith("vit: process ") and named in line
