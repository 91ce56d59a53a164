"""Accuracy after a time budget: clock, schedule, counts, cells."""

import json
import math
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from torch import Tensor, nn

from vit.errors import UserError

pytest.importorskip("timm")
# A tiny network for `vit fit`.
TINY = [
    "--model.architecture={patch_size: 16, width: 16, depth: 1, mlp_dim: 16, num_heads: 1}",
    "--data.batch_size=8",
    "--trainer.precision=32-true",
]


@pytest.fixture
def benchmark(
    load_benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    monkeypatch.setenv("PYTHONPATH", "")  # which the benchmark extends
    return load_benchmark("time_to_accuracy")


@pytest.fixture
def peers(benchmark: ModuleType) -> ModuleType:
    return sys.modules["time_peers"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two colours: 18 and 19 images to train on, 9 and 4 to test; 32 x 32 pixels."""
    random = np.random.default_rng(0)
    for split, counts in {"train": (18, 19), "test": (9, 4)}.items():
        for channel, (name, count) in enumerate(zip(("red", "green"), counts, strict=True)):
            folder = tmp_path / "data" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 60, (32, 32, 3), dtype=np.uint8)
                pixels[..., channel] += 180
                Image.fromarray(pixels).save(folder / f"{i:02}.jpg")
    return tmp_path / "data"


@dataclass
class Hand:
    """A clock that is moved by hand."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Recorded:
    """A learner with steps of one second and four steps per epoch."""

    peers: ModuleType
    hand: Hand
    rates: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        self.learner = self.peers.Learner(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            loss=self.loss,
            epoch=lambda: self.batches(3, 3, 3, 3),
            test=self.test,
            num_train=12,
            num_test=7,
            setting=self.peers.Setting("timm", "test"),
            device=torch.device("cpu"),
        )

    def batches(self, *counts: int) -> Iterator[tuple[Tensor, Tensor]]:
        for count in counts:
            yield torch.randn(count, 1, 2, 2), torch.zeros(count, dtype=torch.long)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.hand.now += 1
        self.rates.append(self.learner.optimizer.param_groups[0]["lr"])
        return logits.square().mean()

    def test(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.hand.now += 1000
        return self.batches(4, 3)


def test_the_rate_follows_the_share_of_the_budget_that_has_passed(peers: ModuleType) -> None:
    factor = peers.Learner.factor
    assert factor(0, 0.0) < 0.01
    assert factor(0, 0.025) == pytest.approx(0.5, abs=0.01)
    assert factor(0, 0.05) == 1
    # A cosine from the end of the warm-up to that of the budget, for any step.
    for used in (0.1, 0.3, 0.525, 0.8, 1.0):
        cosine = (1 + np.cos(np.pi * (used - 0.05) / 0.95)) / 2
        assert factor(0, used) == factor(10_000, used) == pytest.approx(cosine, abs=1e-3)
    hand = Hand()
    recorded = Recorded(peers, hand)
    peers.train(recorded.learner, peers.Clock(40, wall=hand), each_epoch=False)
    assert recorded.rates == pytest.approx([0.5 * factor(0, s / 40) for s in range(40)])
    assert all(a > b for a, b in zip(recorded.rates[2:], recorded.rates[3:], strict=False))


@pytest.mark.parametrize("each_epoch", [False, True])
def test_the_budget_ends_training_and_scoring_is_not_in_it(
    peers: ModuleType, each_epoch: bool
) -> None:
    hand = Hand()
    recorded = Recorded(peers, hand)
    clock = peers.Clock(10.5, wall=hand)
    done = peers.train(recorded.learner, clock, each_epoch=each_epoch)
    assert done["steps"] == 11 and done["images_seen"] == 33
    assert [seconds for seconds, _ in done["scores"]] == ([4, 8, 11] if each_epoch else [])
    assert clock.seconds == 11
    hand.now += 5
    assert clock.seconds == 11 and clock.used == 1


def test_the_clock_waits_for_the_device(peers: ModuleType) -> None:
    hand = Hand()

    def finish() -> None:
        hand.now += 3

    clock = peers.Clock(10, wall=hand, finish=finish)
    clock.start()
    hand.now += 1
    clock.stop()
    assert clock.seconds == 4


def test_scoring_counts_every_test_image(peers: ModuleType) -> None:
    recorded = Recorded(peers, Hand())
    linear = recorded.learner.model[1]
    nn.init.zeros_(linear.weight)
    linear.bias.data = torch.tensor([1.0, 0.0])
    assert recorded.learner.accuracy() == 1
    linear.bias.data = torch.tensor([0.0, 1.0])
    assert recorded.learner.accuracy() == 0
    assert recorded.learner.model.training
    recorded.learner.num_test = 8
    with pytest.raises(RuntimeError, match="7 test images were counted, the set has 8"):
        recorded.learner.accuracy()


def autocast(learner: Any) -> bool:
    with learner.precision():
        return torch.is_autocast_enabled("cpu")


def test_arms_differ_in_what_they_are_named_for(
    peers: ModuleType, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "default_precision", lambda device: ("bf16-mixed", "it has it"))

    def learner(arm: str, *options: str) -> Any:
        return peers.LEARNERS[arm](peers.Job(arm, str(data), 0, 9, False, "cpu", list(options)))

    plain, best = learner("timm"), learner("timm_best")
    assert type(plain.optimizer) is type(best.optimizer) is torch.optim.AdamW
    assert not plain.optimizer.defaults["fused"] and best.optimizer.defaults["fused"]
    assert plain.model.blocks[0].attn.fused_attn and not best.model.blocks[0].attn.fused_attn
    assert autocast(best) and not autocast(plain)
    for found in (plain, best):
        images, labels = zip(*found.epoch(), strict=True)
        assert sum(map(len, images)) >= 37 and images[0].shape[1:] == (3, 32, 32)
        assert 0.3 < labels[0].float().mean() < 0.7
        tested = list(found.test())
        assert sum(len(labels) for _, labels in tested) == found.num_test == 13
    # Both normalise alike: no augmentation at test, classes in the same order.
    (theirs, labels), (ours, same) = next(iter(plain.test())), next(iter(best.test()))
    assert torch.allclose(theirs, ours, atol=1e-5) and labels.equal(same)
    recipe = learner("timm_recipe", "--data.batch_size=16", "--model.loss.label_smoothing=0.1")
    assert type(recipe.optimizer).__name__ == "MuonWithAdamW"
    assert (recipe.model.embed_dim, len(recipe.model.blocks)) == (128, 4)
    assert (best.model.embed_dim, len(best.model.blocks)) == (192, 6)
    assert recipe.settings["batch_size"] == 16 and len(next(iter(recipe.epoch()))[0]) == 16
    smoothed = recipe.loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item()
    assert smoothed == pytest.approx(math.log(1 + math.exp(-2)) + 0.05 * 2)
    assert recipe.factor(10**6, 0.5) == pytest.approx(0.5)  # linear


class Slow(Callback):
    """Evaluations take a quarter of a second."""

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any
    ) -> None:
        time.sleep(0.25)


def test_the_time_limit_of_vit_fit_pauses_while_the_test_images_are_scored(
    benchmark: ModuleType, make_data: Callable, make_model: Callable, make_trainer: Callable
) -> None:
    rows: list[dict[str, float]] = []

    class Kept(Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            rows.append({k: v.item() for k, v in trainer.callback_metrics.items()})

    limit = benchmark.EpochTests(0.5)
    data = make_data()
    trainer = make_trainer(max_epochs=-1, callbacks=[limit, Slow(), Kept()])
    model = make_model()
    began = time.monotonic()
    trainer.fit(model, data)
    passed = time.monotonic() - began
    assert len(data.splits.val) == 7 == int(model.val_metrics.images.compute())
    seconds = [row["training_seconds"] for row in rows]
    assert seconds == sorted(seconds) and seconds[-1] >= 0.5
    # The last row was written just before its evaluation ended.
    assert rows[-1]["evaluation_seconds"] >= 0.25 * len(rows)
    assert seconds[-1] + rows[-1]["evaluation_seconds"] < passed
    assert limit.time_elapsed() + 0.25 * len(rows) < passed


def summary_of(accuracy: float, **others: Any) -> dict[str, Any]:
    found = {"images_seen": 1000, "steps": 10, "train_seconds": 2.0, "train_cpu_seconds": 3.0}
    found |= {"images": {"train": 20, "test": 10}}
    found |= {"metrics": {"test/acc1": accuracy}, "parameters": 7, "settings": {}, "scores": []}
    return {**found, **others}


def test_one_seed_of_all_arms_comes_before_the_next_and_is_written(
    benchmark: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    file = tmp_path / "results.json"

    def cell(arm: str, seed: int, options: Namespace) -> dict[str, Any]:
        calls.append((arm, seed))
        if seed == 1:
            assert [row["n"] for row in json.loads(file.read_text())["rows"]] == [1, 1]
        return summary_of(0.5 + 0.1 * seed, scores=[(1.5, 0.4), (3.0, 0.5 + 0.1 * seed)])

    monkeypatch.setattr(benchmark, "cell", cell)
    options = ["--data.root", str(data), "--seeds=2", "--arms", "timm_best", "vit"]
    document = benchmark.main([*options, "--until", "0.4", "0.6", "--results", str(file)])
    assert calls == [(arm, seed) for seed in (0, 1) for arm in ("timm_best", "vit")]
    assert json.loads(file.read_text()) == document
    assert {"hardware", "versions", "commit", "date", "threads"} <= set(document)
    assert "timm" in document["versions"] and document["threads"] == torch.get_num_threads()
    second, first = document["rows"]
    assert (first["label"], second["label"]) == ("timm, best settings", "vit")
    assert first["accuracies"] == pytest.approx([0.5, 0.6])
    assert first["mean"] == pytest.approx(0.55)
    assert first["std"] == pytest.approx(statistics.stdev([0.5, 0.6]))
    assert first["seconds_to"] == {"0.4": [1.5, 1.5], "0.6": [None, 3.0]}


def test_rows_of_other_arms_stay_under_the_same_settings(
    benchmark: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert arms("--arms", "vit", "--seconds", "9", "--until", "0.5") == ["vit"]


def test_vit_is_held_to_the_budget_and_takes_the_options_behind_the_dashes(
    benchmark: ModuleType, data: Path
) -> None:
    root = ["--data.root", str(data)]
    options = benchmark.parsed([*root, "--seconds", "93784", "--", "--model.compile", "true"])
    found = benchmark.fit_arguments(options, 4)
    assert found[found.index("--trainer.max_time") + 1] == "01:02:03:04"
    assert found[found.index("--trainer.limit_val_batches") + 1] == "0"
    assert found[-4:] == ["--model.compile", "true", "--seed_everything", "4"]
    options = benchmark.parsed([*root, "--seconds", "60", "--until", "0.9"])
    found = benchmark.fit_arguments(options, 4)
    assert not {"--trainer.max_time", "--trainer.limit_val_batches"} & set(found)
    assert any("EpochTests" in word and '"seconds": 60' in word for word in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "vit", "tim"], "invalid choice: 'tim'"),
        (["--data.root", "nowhere"], "nowhere has no folder train/"),
        (["--seconds", "0"], "--seconds 0 must be at least 1"),
        (["--until", "94"], "--until 94: accuracies are in"),
    ],
)
def test_mistakes_get_one_line(benchmark: ModuleType, arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        benchmark.main(arguments)
    assert "\n" not in str(caught.value)


def test_data_that_the_arms_would_read_differently_are_refused(
    benchmark: ModuleType, data: Path
) -> None:
    benchmark.check_data(data)
    first = data / "train" / "green" / "00.jpg"
    Image.new("RGB", (40, 30)).save(first)
    with pytest.raises(UserError, match="has 40 x 30 pixels; all must have 32 x 32"):
        benchmark.check_data(data)
    first.write_text("<html>")
    with pytest.raises(UserError, match=r"00.jpg is not a readable image"):
        benchmark.check_data(data)
    (data / "train" / "blue").mkdir()
    with pytest.raises(UserError, match="the same classes; see blue"):
        benchmark.check_data(data)


@pytest.mark.slow
def test_arms_are_trained_once_within_the_budget(
    benchmark: ModuleType,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    runs, file = tmp_path / "runs", tmp_path / "results.json"
    options = ["--data.root", str(data), "--seeds=1", "--arms", "vit", "timm"]
    options += ["--runs", str(runs), "--results", str(file)]
    document = benchmark.main([*options, "--seconds=1", "--", *TINY])
    ours, theirs = document["rows"]
    for row in (ours, theirs):
        assert len(row["accuracies"]) == 1 and row["accuracies"][0] * 13 % 1 < 1e-6
        assert row["images_seen"] > 0 and row["cpu_seconds"] > 0
        assert row["images"]["test"] == 13
        assert row["seconds"] >= 1
    assert ours["settings"]["precision"] == "32-true" and ours["parameters"] < 30_000
    assert theirs["settings"]["optimizer"].startswith("AdamW")
    assert str(tmp_path) not in ours["settings"]["command"]
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("summary.json")}
    assert len(times) == 2
    again = benchmark.main([*options, "--seconds=1", "--", *TINY])
    assert again["rows"] == document["rows"]
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert capsys.readouterr().err.count("reused") == 2
    with pytest.raises(SystemExit, match="was made with other options"):
        benchmark.main([*options, "--seconds=3", "--", *TINY])
    # An interrupted cell is discarded.
    summary = runs / "timm" / "seed-0" / "summary.json"
    summary.rename(summary.with_name("half.json"))
    monkeypatch.setattr(benchmark, "run_peer", lambda job, folder: summary_of(folder.exists()))
    assert benchmark.main([*options, "--seconds=1", "--", *TINY])["rows"][1]["accuracies"] == [0]
