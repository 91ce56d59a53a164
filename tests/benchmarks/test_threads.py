"""benchmarks/threads.py at the smallest size."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def threads(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[ModuleType]:
    before = torch.get_num_threads()
    module = load_benchmark("threads")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    monkeypatch.setattr("collect.RESULTS", tmp_path / "benchmarks" / "results")
    monkeypatch.setattr(module, "TURN", 0.0)
    monkeypatch.setattr(module, "PRODUCT", 16)
    yield module
    torch.set_num_threads(before)


def test_a_step_is_measured_with_each_number_of_threads(
    threads: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setattr(threads, "hardware", lambda: {"cpu": "c", "cores": 3})
    monkeypatch.setattr(threads, "STEPS", [("digits", "training", 2), ("digits", "inference", 4)])
    monkeypatch.setattr(sys, "argv", ["threads.py", "--rounds", "3"])
    threads.main()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    [file] = (tmp_path / "benchmarks" / "results").iterdir()
    assert json.loads(file.read_text()) == found and file.name.startswith("threads_cpu_")
    assert [row["threads"] for row in found["rows"]] == [1, 2, 3] * 2
    for row in [*found["rows"], found["processes"]]:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] and row["rounds"] == 3
    for row in found["rows"][::3]:
        assert row["ratio_min"] == row["ratio_max"] == 1
        # A training step is three forward passes, less the gradient of the pixels.
        assert row["images_per_second"] > 0
    training, inference = (found["rows"][i]["gflop"] for i in (0, 3))
    assert 2.5 * 2 < training / (inference / 4) < 3 * 2


def test_the_step_computes_with_the_threads_of_its_turn(threads: ModuleType) -> None:
    seen = []
    calls = [
        threads.on_threads(lambda: seen.append(torch.get_num_threads()), count) for count in (2, 1)
    ]
    for call in calls:
        call()
    assert seen == [2, 1]


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not say it")
def test_cores_of_others_are_what_is_left_of_the_busy_ones(
    threads: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads.busy_seconds() > 0
    clocks = {"busy": iter([100.0, 103.0]), "own": iter([5.0, 6.0]), "wall": iter([0.0, 4.0])}
    monkeypatch.setattr(threads, "busy_seconds", lambda: next(clocks["busy"]))
    monkeypatch.setattr(threads.os, "times", lambda: (next(clocks["own"]), 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(threads.time, "perf_counter", lambda: next(clocks["wall"]))
    assert threads.watched(dict) == ({}, 0.5)


@pytest.mark.parametrize(("most", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_thread_counts_double(threads: ModuleType, most: int, counts: list[int]) -> None:
    assert threads.thread_counts(most) == counts
