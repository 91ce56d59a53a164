"""The benchmarks for GPUs, tried on the CPU at the smallest size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def gpu_sh(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OUT": str(out), "PYTHON": sys.executable},
    )


def test_a_step_writes_its_file_once_and_a_failed_one_says_so(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--toy", "--only", "attention")
    done = gpu_sh(tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "attention_cpu.json").read_text())["rows"]
    assert {row["backend"] for row in rows} == {"MATH", "FLASH_ATTENTION"}
    assert all(0 < row["error"] < 1e-5 and row["milliseconds"] > 0 for row in rows)
    assert "exists" in gpu_sh(tmp_path, *options).stdout
    (tmp_path / "attention_cpu.json").unlink()
    done = gpu_sh(tmp_path, "--device", "tpu", "--only", "attention")
    assert done.returncode == 1 and "exit status 2; see" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["attention.log"]
    assert "invalid choice: 'tpu'" in (tmp_path / "attention.log").read_text()


def test_the_headline_comes_first_and_what_needs_data_only_with_data(tmp_path: Path) -> None:
    steps = gpu_sh(tmp_path, "--list").stdout.split()
    assert steps[:4] == ["models_vit_b16", "models_vit_s16", "models_vit_l16", "models_vit_h14"]
    assert "accuracy" not in steps and len(steps) == len(set(steps)) == 14
    assert gpu_sh(tmp_path, "--fast").returncode == 2


@pytest.mark.parametrize("part", ["optimizers", "memory", "processes", "feeding", "fp8"])
def test_a_part_runs_at_the_smallest_size(part: str, tmp_path: Path) -> None:
    script = [sys.executable, ROOT / "benchmarks" / "gpu.py", part, "--device", "cpu", "--toy"]
    done = subprocess.run([*script, "--results", tmp_path / "file"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "file").read_text())["rows"]
    names = {
        "optimizers": [row.get("optimizer") for row in rows],
        "memory": [row.get("checkpointing") for row in rows],
        "processes": [row.get("wrapper") for row in rows],
        "feeding": [row.get("workers") for row in rows],
        "fp8": [row.get("refused") for row in rows],
    }
    assert (
        names[part]
        == {
            "optimizers": ["AdamW", "fused AdamW", "Muon"],
            "memory": [False, True],
            "processes": ["plain", "DDP", "FSDP2"],
            "feeding": [0, 1],
            "fp8": ["this device has no units for float8"],
        }[part]
    )
