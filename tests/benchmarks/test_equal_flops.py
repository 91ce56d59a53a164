"""The benchmark at equal FLOPs: cells, counts, statistics."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vit.models.config import ViTConfig

VIT = ViTConfig(
    image_size=8, patch_size=4, width=6, depth=1, mlp_dim=10, num_heads=2, num_classes=3
).to_dict()


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("equal_flops")


def by_hand() -> int:
    """ViT, arXiv:2010.11929, section 3.1: two operations per multiply-add, five tokens."""
    tokens, width, mlp, classes, patches = 5, 6, 10, 3, 4
    projection = patches * (3 * 4 * 4) * width
    dense = tokens * (3 * width * width + width * width + 2 * width * mlp)
    attention = 2 * tokens * tokens * width
    return 2 * (projection + dense + attention + width * classes)


def test_flops_are_those_of_the_formula(benchmark: ModuleType) -> None:
    assert benchmark.forward_flops(VIT) == by_hand()


def test_every_seed_of_every_model_is_run_and_written(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run_cell(arguments: list[str], folder: Path) -> dict[str, Any]:
        calls.append(arguments)
        summary = {
            "metrics": {"test/acc1": 0.5 + 0.01 * len(calls)},
            "split": "test",
            "command": "vit fit",
            "images": {"train": 9, "val": 0, "test": 9},
            "images_seen": 1000,
            "train_seconds": 2.0,
            "train_cpu_seconds": 3.0,
            "steps": 10,
            "parameters": 7,
            "precision": "32-true",
            "hardware": {"cores": 2},
            "versions": {"torch": "2"},
            "model": VIT,
        }
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary))
        return summary

    monkeypatch.setattr(benchmark, "run_cell", run_cell)
    file = tmp_path / "results.json"
    options = ["--seeds=2", f"--runs={tmp_path / 'runs'}", f"--results={file}"]
    document = benchmark.main([*options, "--", "--data.root", "here"])
    assert json.loads(file.read_text()) == document
    assert [(call[1], call[-1]) for call in calls] == [
        (f"cifar10/equal_flops_{name}", seed) for seed in "01" for name in ("vit", "bit", "hybrid")
    ]
    assert all(call[2:4] == ["--data.root", "here"] for call in calls)
    assert document["largest_over_smallest_flops"] == 1
    for entry, accuracies in zip(
        document["rows"], ([0.51, 0.54], [0.52, 0.55], [0.53, 0.56]), strict=True
    ):
        assert entry["accuracies"] == pytest.approx(accuracies)
        assert entry["mean"]["test/acc1"] == pytest.approx(statistics.mean(accuracies))
        assert entry["std"]["test/acc1"] == pytest.approx(statistics.stdev(accuracies))
        assert entry["n"] == 2
        assert entry["training_flops"] == 3 * by_hand() * 1000
        assert entry["cpu_seconds"] == [3.0, 3.0]
        assert {"hardware", "versions", "commit", "date"} <= set(entry)
