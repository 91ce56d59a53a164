"""Accuracy after a time budget: clock, schedule, counts, cells."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

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


@dataclass
class Recorded:
    """A learner with steps of one second and four steps per epoch; its own clock."""

    now: float = 100.0
    rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        self.learner = peers.Learner(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            loss=self.loss,
            epoch=lambda: self.batches(3, 3, 3, 3),
            test=lambda: self.batches(4, 3),
            images={"train": 12, "test": 7},
            setting=peers.Setting("timm", "test"),
            device=torch.device("cpu"),
            read=(2.0, 1.0),
        )

    def monotonic(self) -> float:
        return self.now

    process_time = monotonic

    def batches(self, *counts: int) -> Iterator[tuple[Tensor, Tensor]]:
        for count in counts:
            yield torch.randn(count, 1, 2, 2), torch.zeros(count, dtype=torch.long)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.now += 1
        self.rates.append(self.learner.optimizer.param_groups[0]["lr"])
        return logits.square().mean()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded()
    monkeypatch.setattr(peers, "time", recorded)
    return recorded


def test_the_rate_follows_the_share_of_the_budget_that_has_passed(recorded: Recorded) -> None:
    factor = peers.cosine
    assert factor(0, 0.025) == pytest.approx(0.5)
    for used in (0.05, 0.3, 1.0):  # from the end of the warm-up to that of the budget
        cosine = (1 + np.cos(np.pi * (used - 0.05) / 0.95)) / 2
        assert factor(0, used) == factor(10_000, used) == pytest.approx(cosine)
    peers.train(recorded.learner, 40)
    assert recorded.rates == pytest.approx([0.5 * factor(0, s / 40) for s in range(40)])


def test_the_budget_ends_training_and_decoding_counts_as_cost(recorded: Recorded) -> None:
    assert peers.train(recorded.learner, 10.5) == {
        "steps": 11,
        "images_seen": 33,
        "train_seconds": 11 + 2,
        "train_cpu_seconds": 11 + 1,
    }


def test_scoring_counts_every_test_image(recorded: Recorded) -> None:
    linear: Any = recorded.learner.model[1]
    nn.init.zeros_(linear.weight)
    for bias, accuracy in (([1.0, 0.0], 1), ([0.0, 1.0], 0)):
        linear.bias.data = torch.tensor(bias)
        assert recorded.learner.accuracy() == accuracy
    recorded.learner.images["test"] = 8
    with pytest.raises(RuntimeError, match="7 test images were counted of 8"):
        recorded.learner.accuracy()


def autocast(learner: Any) -> bool:
    with learner.precision():
        return torch.is_autocast_enabled("cpu")


def test_arms_differ_in_what_they_are_named_for(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert recipe.factor(10**6, 0.5) == pytest.approx(0.5)  # linear


def summary_of(accuracy: float) -> dict[str, Any]:
    costs = {"images_seen": 1000, "steps": 10, "train_seconds": 2.0, "train_cpu_seconds": 3.0}
    facts = {"images": {"train": 20, "test": 10}, "parameters": 7, "settings": {}}
    return {**costs, **facts, "metrics": {"test/acc1": accuracy}}


def test_rows_of_other_arms_stay_under_the_same_settings(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "cell", lambda arm, seed, options: summary_of(0.5))

    def arms(*options: str) -> list[str]:
        file = str(tmp_path / "results.json")
        given = ["--data.root", str(data), "--results", file, *options]
        return [row["arm"] for row in benchmark.main(given)["rows"]]

    assert arms("--arms", "timm", "--seeds", "1") == ["timm"]
    assert arms("--arms", "vit") == ["vit", "timm"]
    assert arms("--arms", "vit", "--seconds", "9") == ["vit"]
    assert arms("--arms", "timm", "--seconds", "9") == ["vit", "timm"]


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
    options = ["--data.root", str(data), "--seeds=1", "--arms", "vit", "timm", "--seconds=1"]
    options += ["--runs", str(runs), "--results", str(file), "--", TINY, "--data.batch_size=8"]
    rows = benchmark.main(options)["rows"]
    for row in rows:
        assert len(row["accuracies"]) == 1 and row["accuracies"][0] * 13 % 1 < 1e-6
        assert row["images_seen"] > 0 and row["cpu_seconds"] > 0 and row["seconds"] >= 1
    assert str(tmp_path) not in rows[0]["settings"]["command"]
    (runs / "timm" / "seed-0" / "summary.json").rename(runs / "timm" / "seed-0" / "half.json")
    facts = dict.fromkeys(("command", "precision", "model"), "")
    monkeypatch.setattr(benchmark, "run_fit", lambda *_: summary_of(1) | facts)
    monkeypatch.setattr(benchmark, "run_once", lambda *given: summary_of(given[1].exists()))
    assert benchmark.main(options)["rows"][1]["accuracies"] == [0]
