"""Scripts that measure, at the smallest size: what they compare, count and write."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.speed import data, gpu, scaling, startup, threads

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script's `main`; returns the JSON of its last line, which is also what it writes."""
    threads = torch.get_num_threads()

    def called(module: ModuleType, *arguments: str) -> dict[str, Any]:
        file = tmp_path / "results.json"
        argv = [f"{module.__name__}.py", *arguments, "--results", str(file)]
        monkeypatch.setattr(sys, "argv", argv)
        try:
            module.main()
        finally:
            torch.set_num_threads(threads)
        content = json.loads(file.read_text())
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == content
        assert content["hardware"]["cores"] >= 1 and content["versions"]["torch"]
        return content

    return called


def test_every_axis_is_measured_and_drawn(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = {"image_size": 32, "patch_size": 16, "width": 64, "depth": 1, "batch": 1}
    axes = {"batch": (1, 2), "width": (64, 128)}
    monkeypatch.setattr(scaling, "BASE", sizes)
    monkeypatch.setattr(scaling, "AXES", axes)
    rows = run(scaling, "--quick", "--axes", *axes)["rows"]
    assert len(rows) == 2 * 2 * 3
    exponents = {r["axis"]: r["exponent_of_operations"] for r in rows}
    assert exponents["batch"] == pytest.approx(0) and 1 < exponents["width"] < 2
    scaling.draw(rows, tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_startup_is_compared_with_import_torch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    short = [sys.executable, "-c", "pass"]
    commands = {"import torch": short, "busy": [sys.executable, "-c", "sum(range(10**7))"]}
    monkeypatch.setattr(startup, "prepare", lambda folder: None)
    monkeypatch.setattr(startup, "cases", lambda folder: commands)
    base, busy = run(startup, "--rounds", "3")["rows"]
    assert base["above_import_torch"] == 0 < busy["above_import_torch"]
    assert busy["min"] <= busy["cpu_seconds"] <= busy["max"]


def test_a_step_is_measured_with_each_thread_count(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "TURN", 0.0)
    monkeypatch.setattr(threads, "hardware", lambda: {"cpu": "c", "cores": 2})
    monkeypatch.setattr(threads, "STEPS", [("digits", "inference", 1)])
    rows = run(threads, "--rounds", "2")["rows"]
    assert [row["threads"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 < row["ratio_min"] <= row["ratio"] <= row["ratio_max"] and row["rounds"] == 2
        assert row["images_per_second"] > 0


def write(folder: Path, count: int, height: int, width: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        image = small.resize((width, height), Image.Resampling.BICUBIC)
        image.save(folder / f"{index:02}.jpg", quality=90)


@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_every_figure_of_reading_images_is_there_and_the_pixels_agree(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes = tmp_path / "sizes"
    write(tmp_path / "photos" / "all", 21, 300, 400)
    write(tmp_path / "small" / "a", 8, 8, 8)
    write(tmp_path / "small" / "b", 8, 8, 8)
    data.make_sizes(tmp_path / "photos", sizes)
    assert Image.open(next((sizes / "2000").rglob("*.jpg"))).size == (1600, 1200)
    monkeypatch.setattr(data, "CIFAR_BATCH", 4)
    folders = [str(sizes / "500"), str(sizes / "2000")]
    content = run(data, *folders, "--cifar", str(tmp_path / "small"), "--quick")
    for figures in (*content["photos"].values(), content["small_images_in_memory"]):
        first, *others = figures["training"].values()
        assert first["ratio"] == {"median": 1, "min": 1, "max": 1} and others
        assert all(other["images_per_second"]["min"] > 0 for other in others)
    for figures in content["photos"].values():
        assert figures["evaluation_pixels"]["largest_difference"] == 0
    assert content["photos"]["500"]["training_pixels"]["decoded at 1/1"]["psnr"]["min"] > 45


@pytest.mark.parametrize(
    ("part", "column", "values"),
    [
        ("optimizers", "optimizer", ["AdamW", "fused AdamW", "Muon"]),
        ("memory", "checkpointing", [False, True]),
        ("processes", "wrapper", ["plain", "DDP", "FSDP2"]),
        ("feeding", "workers", [0, 1]),
        ("attention", "backend", [name for name in ("MATH", "FLASH_ATTENTION") for _ in range(2)]),
    ],
)
def test_a_part_of_the_gpu_benchmark_runs_on_the_cpu(
    part: str, column: str, values: list[Any], run: Run
) -> None:
    content = run(gpu, part, "--device", "cpu", "--quick")
    assert [row[column] for row in content["rows"]] == values
    assert all(row.get("error", 0) < 1e-5 for row in content["rows"])
