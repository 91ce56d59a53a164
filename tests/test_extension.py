"""The extension of docs/architecture.md: installed as it is printed, trained with, and used."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
SECTION = PAGE.split("## An extension in 60 lines\n")[1].split("\n## ")[0]
METADATA = "Metadata-Version: 2.1\nName: vit-npz\nVersion: 1\nSummary: count images\n"
OPTIONS = (
    "--model.architecture={patch_size: 4, width: 16, depth: 1, mlp_dim: 32, num_heads: 2}",
    "--data.image_size=8",
    "--trainer.accelerator=cpu",
    "--trainer.precision=32-true",
)
Run = Callable[..., str]


def install(site: Path) -> int:
    """Writes the package of the page and its metadata into a folder; returns its lines of code."""
    modules = re.findall(r"`(vit_npz/\w+\.py)`.*?```python\n(.*?)```", SECTION, re.S)
    assert len(modules) == 3
    for name, text in [*modules, ("vit_npz/__init__.py", "")]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    rows = re.search(r"```toml\n.*?\n(.*?)```", SECTION, re.S)
    assert rows is not None
    about = site / "vit_npz-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(METADATA)
    (about / "entry_points.txt").write_text("[vit.extensions]\n" + rows[1].replace('"', ""))
    return sum(1 for _, text in modules for line in text.splitlines() if line)


def write_split(file: Path, count: int, seed: int) -> None:
    """Images of noise, brighter for one of two classes."""
    draws = np.random.default_rng(seed)
    labels = np.array(["dark", "light"])[np.arange(count) % 2]
    shades = np.where(labels == "light", 150, 0)[:, None, None, None]
    images = draws.integers(0, 100, (count, 8, 8, 3)) + shades
    np.savez(file, images=images.astype("uint8"), labels=labels)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    site = tmp_path / "site"
    assert install(site) <= 60
    (tmp_path / "shades").mkdir()
    for seed, (split, count) in enumerate({"train": 64, "val": 16, "test": 20}.items()):
        write_split(tmp_path / "shades" / f"{split}.npz", count, seed)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "vit", *words]
        variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return run


@pytest.mark.slow
def test_the_extension_of_the_page_trains_with_two_processes_and_two_workers(
    run: Run, tmp_path: Path
) -> None:
    assert "  count      count images\n" in run("--help")
    assert run("count", "shades") == "train 64\nval 16\ntest 20\n"
    run(
        "fit", "-c", "cifar10/plain", "--task", "logit_norm", "--model.tau=0.5", "--data", "shades",
        *OPTIONS, "--epochs=8", "--lr=0.01", "--run_dir=out", "--data.batch_size=8",
        "--data.loading.num_workers=2", "--devices=2",
    )  # fmt: skip
    recorded = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert (recorded["task"], recorded["model"]["tau"]) == ("logit_norm", 0.5)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["processes"] == 2 and summary["images"] == {"train": 64, "val": 16, "test": 20}
    assert summary["metrics"]["test/acc1"] > 0.9
    score = json.loads(run("test", "out", "--json"))
    assert score["test/acc1"] == pytest.approx(summary["metrics"]["test/acc1"])
    assert "a side below 32 pixels" in run("data", "check", "shades")
