"""Choices by machine: precision, threads, keeping freed memory."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vit import hardware
from vit.cli import process
from vit.cli.process import keep_memory
from vit.hardware import default_precision, is_small_step
from vit.runs.trainer import limit_threads_of

FAULTS = """
import os, resource, sys
from vit.cli import process
from vit.cli.process import keep_memory
print(keep_memory())
def step():
    for _ in range(4):
        bytearray(48 * 2**20)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def python(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_kept_memory_is_not_requested_again_unless_the_user_sets_the_allocator() -> None:
    kept, faults = python(FAULTS, dict(os.environ)).stdout.split()
    assert kept == "False" or int(faults) < 1000  # of 49,152 pages of 4 KB that were touched
    theirs = python(FAULTS, {**os.environ, "MALLOC_TRIM_THRESHOLD_": "1000000"}).stdout.split()
    assert theirs[0] == "False"


WAITING = (
    "from vit.cli.process import sleep_when_waiting as f; print(f()); import torch; print(f())"
)


@pytest.mark.parametrize("name", [None, "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_waiting_threads_sleep_unless_the_user_sets_how_they_wait(name: str | None) -> None:
    free = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    set_by_user = {} if name is None else {name: "7" if name == "GOMP_SPINCOUNT" else "ACTIVE"}
    code = WAITING if name is None else WAITING.partition(" import torch")[0]
    done = python(code, {**free, "OMP_DISPLAY_ENV": "verbose", **set_by_user})
    assert done.stdout.split() == (["False"] if name else ["True", "False"])  # torch is imported
    if name is None and "GOMP_SPINCOUNT" in done.stderr:  # GNU's OpenMP
        assert f"GOMP_SPINCOUNT = '{process.SPINS}'" in done.stderr


def test_another_system_keeps_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_memory() is False


def test_bfloat16_is_chosen_with_hardware_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for has, precision, word in ((True, "bf16-mixed", "has"), (False, "32-true", "no")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has=has: has)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        chosen, reason = default_precision("cpu")
        assert chosen == precision and word in reason
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for has, precision in ((True, "bf16-mixed"), (False, "32-true")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=has, **_: has)
        assert default_precision("auto")[0] == precision
        assert default_precision("cpu")[0] == "32-true"


def test_small_steps_are_computed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert is_small_step(hardware.SMALL_STEP_FLOPS - 1)
    assert not is_small_step(hardware.SMALL_STEP_FLOPS + 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not is_small_step(1)


@pytest.mark.parametrize("status", ["Name: python\nVmRSS: 12 kB\n", "", None])
def test_the_peak_is_unknown_where_the_system_does_not_give_it(
    status: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "status"
    if status is not None:
        file.write_text(status)
    monkeypatch.setattr(hardware, "open", lambda _, **options: open(file, **options), raising=False)
    assert hardware.peak_memory(torch.device("cpu")) is None


@pytest.mark.parametrize(("device", "chosen"), [("cpu", [1]), ("meta", [])])
def test_a_run_of_small_steps_takes_one_thread_of_a_cpu(
    device: str, chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
    network: Any = torch.nn.Linear(4, 4)
    network.patch_size = 4
    calls: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    data: Any = SimpleNamespace(image_size=(8, 8), batch_size=8)
    limit_threads_of(trainer, SimpleNamespace(model=network), data)
    assert calls == chosen
