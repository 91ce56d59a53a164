"""benchmarks/gpu.sh with a stand-in for Python; its parts run in test_measures.py."""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/bash
echo '{"rows": []}' >"${@: -1}"
"""


def gpu_sh(out: Path, *options: str, python: str = "false") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu.sh", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OUT": str(out), "PYTHON": python},
    )


def test_a_step_writes_its_file_once_and_a_failed_one_says_so(tmp_path: Path) -> None:
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text(PYTHON)
    python.chmod(0o755)
    out.mkdir()
    options = ("--device", "cpu", "--toy", "--only", "attention")
    done = gpu_sh(out, *options, python=str(python))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((out / "attention_cpu.json").read_text()) == {"rows": []}
    assert "exists" in gpu_sh(out, *options).stdout
    (out / "attention_cpu.json").unlink()
    done = gpu_sh(out, *options)
    assert done.returncode == 1 and "exit status 1; see" in done.stdout
    assert [file.name for file in out.iterdir()] == ["attention.log"]


def test_the_headline_comes_first_and_what_needs_data_only_with_data(tmp_path: Path) -> None:
    steps = gpu_sh(tmp_path, "--list").stdout.split()
    assert steps[:4] == ["models_vit_b16", "models_vit_s16", "models_vit_l16", "models_vit_h14"]
    assert "accuracy" not in steps and len(steps) == len(set(steps)) == 13
    assert gpu_sh(tmp_path, "--fast").returncode == 2
