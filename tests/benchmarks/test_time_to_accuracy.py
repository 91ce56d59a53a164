"""Accuracy after a time budget: what the arms are, and that each is held to it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.lib import harness
from benchmarks.speed import time_peers as peers
from benchmarks.speed import time_to_accuracy as benchmark
from vit.cli.main import main as vit

pytest.importorskip("timm")
TINY = "--model.architecture={patch_size: 16, width: 16, depth: 1, mlp_dim: 16, num_heads: 1}"


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two colours: 18 and 19 images to train on, 9 and 4 to test; 32 x 32 pixels."""
    for split, counts in {"train": (18, 19), "test": (9, 4)}.items():
        for channel, (name, count) in enumerate(zip(("red", "green"), counts, strict=True)):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = np.full((32, 32, 3), i, np.uint8)
                pixels[..., channel] = 180
                Image.fromarray(pixels).save(folder / f"{i:02}.jpg")
    return tmp_path / "data"


def autocast(learner: Any) -> bool:
    with learner.precision():
        return torch.is_autocast_enabled("cpu")


def test_arms_differ_as_they_are_named(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "has_bfloat16", lambda: True)

    def learner(arm: str, *options: str) -> Any:
        return peers.LEARNERS[arm](peers.Job(arm, str(data), 0, 9, "cpu", list(options)))

    default, best = learner("timm"), learner("timm_best", "--data.batch_size=16")
    assert type(default.optimizer) is type(best.optimizer) is torch.optim.AdamW
    assert not default.optimizer.defaults["fused"] and best.optimizer.defaults["fused"]
    assert default.model.blocks[0].attn.fused_attn and not best.model.blocks[0].attn.fused_attn
    assert autocast(best) and not autocast(default)
    assert sum(len(images) for images, _ in default.epoch()) == 37
    for each in (default, best):
        assert sum(len(labels) for _, labels in each.test()) == each.images["test"] == 13
    # Both normalise alike: no augmentation at test, classes in the same order.
    (theirs, labels), (ours, same) = next(iter(default.test())), next(iter(best.test()))
    assert torch.allclose(theirs, ours, atol=1e-5) and labels.equal(same)
    recipe = learner("timm_recipe", "--data.batch_size=16", "--model.loss.label_smoothing=0.1")
    assert type(recipe.optimizer).__name__ == "MuonWithAdamW"
    assert (recipe.model.embed_dim, len(recipe.model.blocks)) == (128, 4)
    assert recipe.settings["batch_size"] == 16 and len(next(iter(recipe.epoch()))[0]) == 16
    smoothed = recipe.loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item()
    assert smoothed == pytest.approx(math.log(1 + math.exp(-2)) + 0.05 * 2)
    assert recipe.factor(10**8, 0.5) == pytest.approx(0.5)  # linear


def summary_of(accuracy: float) -> dict[str, Any]:
    costs = {"images_seen": 1000, "steps": 10, "train_seconds": 2.0, "train_cpu_seconds": 3.0}
    facts = {"images": {"train": 20, "test": 10}, "parameters": 7, "settings": {}}
    return {**costs, **facts, "metrics": {"test/acc1": accuracy}}


def test_arms_are_trained_within_the_budget_and_an_interrupted_one_anew(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def here(command: list[str], folder: Path, _: Any) -> dict[str, Any]:
        if "fit" in command:
            assert vit(command[command.index("fit") :]) == 0
        else:
            peers.main(*command[3:])
        return json.loads((folder / "summary.json").read_text())

    monkeypatch.setattr(harness, "run_once", here)
    monkeypatch.setattr(benchmark, "run_once", here)
    runs, file = tmp_path / "runs", tmp_path / "results.json"
    options = ["--data.root", str(data), "--seeds=1", "--seconds=1", "--arms", "vit"]
    options += ["vit_hybrid", "timm"]
    options += ["--runs", str(runs), "--results", str(file), "--", TINY, "--data.batch_size=8"]
    rows = benchmark.main(options)["rows"]
    for row in rows:
        assert len(row["accuracies"]) == 1 and row["accuracies"][0] * 13 % 1 < 1e-6
        assert row["images_seen"] > 0 and row["cpu_seconds"] > 0
        if row["arm"] in benchmark.OURS:  # a budget is a time that is not exceeded
            assert "--budget 1s" in row["settings"]["command"]
        else:
            assert row["seconds"] >= 1
    assert str(tmp_path) not in rows[0]["settings"]["command"]
    (runs / "timm" / "seed-0" / "summary.json").rename(runs / "timm" / "seed-0" / "half.json")
    facts = dict.fromkeys(("command", "precision", "model"), "")
    monkeypatch.setattr(benchmark, "run_fit", lambda *_: summary_of(1) | facts)
    monkeypatch.setattr(benchmark, "run_once", lambda *given: summary_of(given[1].exists()))
    assert benchmark.main(options)["rows"][-1]["accuracies"] == [0]
