"""benchmarks/gpu.sh, tried on the CPU at the smallest size."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def gpu_sh(
    out: Path, *options: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OUT": str(out), "PYTHON": python},
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
    done = gpu_sh(tmp_path, *options, python="false")
    assert done.returncode == 1 and "exit status 1; see" in done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["attention.log"]


def test_the_headline_comes_first_and_what_needs_data_only_with_data(tmp_path: Path) -> None:
    steps = gpu_sh(tmp_path, "--list").stdout.split()
    assert steps[:4] == ["models_vit_b16", "models_vit_s16", "models_vit_l16", "models_vit_h14"]
    assert "accuracy" not in steps and len(steps) == len(set(steps)) == 12
    assert gpu_sh(tmp_path, "--fast").returncode == 2
