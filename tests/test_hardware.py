"""Choices by machine: precision, threads, keeping freed memory."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from vit import hardware
from vit.cli import main
from vit.hardware import default_precision, keep_memory, limit_threads
from vit.runs.trainer import limit_threads_of

FAULTS = """
import os, resource, sys
from vit.hardware import keep_memory
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


def kept_and_faults(**environment: str) -> tuple[bool, int]:
    """Memory is kept; and the page faults of a second pass."""
    kept, faults = python(FAULTS, {**os.environ, **environment}).stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_kept_memory_is_not_requested_again() -> None:
    kept, faults = kept_and_faults()
    if not kept:
        pytest.skip("not glibc")
    assert faults < 1000  # of the 49,152 pages of 4 KB that were touched


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_the_users_own_settings_of_the_allocator_stand() -> None:
    kept, _ = kept_and_faults(MALLOC_TRIM_THRESHOLD_="1000000")
    assert not kept


WAITING = "from vit.hardware import sleep_when_waiting as f; print(f()); import torch; print(f())"


def waiting(**environment: str) -> tuple[list[str], str]:
    """The results of the function before and after torch, and the settings that OpenMP reads."""
    free = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = python(WAITING, {**free, "OMP_DISPLAY_ENV": "verbose", **environment})
    return done.stdout.split(), done.stderr


def test_threads_that_wait_give_their_core_up() -> None:
    changed, shown = waiting()
    assert changed == ["True", "False"]
    if "GOMP_SPINCOUNT" not in shown:
        pytest.skip("another OpenMP than GNU's")
    assert f"GOMP_SPINCOUNT = '{hardware.SPINS}'" in shown


@pytest.mark.parametrize(
    ("name", "value"), [("OMP_WAIT_POLICY", "ACTIVE"), ("GOMP_SPINCOUNT", "7")]
)
def test_the_users_own_way_to_wait_stands(name: str, value: str) -> None:
    code = "from vit.hardware import sleep_when_waiting; print(sleep_when_waiting())"
    assert python(code, {**os.environ, name: value}).stdout == "False\n"


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
    chosen = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    limit = hardware.SMALL_STEP_FLOPS / 6
    limit_threads(params=int(limit / 64) - 1, tokens=16, batch_size=4)
    limit_threads(params=int(limit / 64) + 1, tokens=16, batch_size=4)
    assert chosen == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    limit_threads(params=1, tokens=1, batch_size=1)
    assert chosen == [1]


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
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device(device)))
    network = torch.nn.Linear(4, 4)
    network.patch_size = 4  # pyright: ignore[reportArgumentType]
    calls: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    data: Any = SimpleNamespace(image_size=(8, 8), batch_size=8)
    limit_threads_of(cast(Any, trainer), SimpleNamespace(model=network), data)
    assert calls == chosen


def test_every_command_lets_waiting_threads_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(main, "sleep_when_waiting", lambda: calls.append("asked"))
    assert main.main(["recipes"]) == 0
    assert calls == ["asked"]
