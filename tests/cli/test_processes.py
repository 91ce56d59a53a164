"""Processes that a launcher has started and the run does not know of."""

import pytest

from vit.cli.processes import check_started
from vit.errors import UserError

TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN])
def test_a_run_of_one_process_is_refused_beside_others(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error:
        check_started(1)
    assert "has started 8 processes" in str(error.value)
    options = "--trainer.devices 4 --trainer.num_nodes 2 --trainer.strategy ddp"
    assert options in str(error.value)
    check_started(8)


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
    check_started(1)
