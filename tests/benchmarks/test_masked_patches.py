"""The benchmark of masked-patch pre-training: subsets, cells, statistics."""

import csv
import json
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vit.data.manifest import load_manifest


@pytest.fixture
def benchmark(load_benchmark: Callable[[str], ModuleType]) -> ModuleType:
    return load_benchmark("masked_patches")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Empty files: 40 and 60 to train on, 5 of each class to test."""
    root = tmp_path / "data"
    for split, counts in {"train": (40, 60), "test": (5, 5)}.items():
        for name, count in zip(("cat", "dog"), counts, strict=True):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                (root / split / name / f"{i}.jpg").touch()
    return root


def trained_on(manifest: Path) -> list[tuple[str, str]]:
    with manifest.open() as file:
        return [(r["path"], r["label"]) for r in csv.DictReader(file) if r["split"] == "train"]


def test_subsets_are_shares_of_each_class_and_lie_in_each_other(
    benchmark: ModuleType, data: Path, tmp_path: Path
) -> None:
    small, large = tmp_path / "runs" / "5.csv", tmp_path / "runs" / "20.csv"
    assert benchmark.write_subset(data, 5, small) == 5
    assert benchmark.write_subset(data, 20, large) == 20
    assert Counter(label for _, label in trained_on(large)) == {"cat": 8, "dog": 12}
    assert set(trained_on(small)) < set(trained_on(large))
    before = small.read_text()
    benchmark.write_subset(data, 5, small)
    assert small.read_text() == before
    splits = load_manifest(small, val_fraction=0)
    assert splits.val is None and splits.test is not None
    assert (len(splits.train), len(splits.test)) == (5, 10)


def test_every_cell_is_run_and_written(
    benchmark: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[list[str], Path]] = []
    gain = {"pretrained": 0.25, "random_weights": 0.0, "random_weights_whole_budget": 0.125}

    def run_cell(arguments: list[str], folder: Path) -> dict[str, Any]:
        calls.append((arguments, folder))
        seed = int(folder.name.partition("-")[2] or 0)
        accuracy = 0.5 + 0.01 * seed + gain.get(folder.parent.name.replace("-", ""), 0)
        summary = {
            "metrics": {"test/acc1": accuracy},
            "split": "test",
            "command": f"vit fit --data.root {data}",
            "images": {"train": 9, "val": 0, "test": 9},
            "images_seen": 1000,
            "train_seconds": 2.0,
            "train_cpu_seconds": 3.0,
            "steps": 70 if folder.name == "pretrained" else 10,
            "parameters": 7,
            "precision": "32-true",
            "hardware": {"cores": 2},
            "versions": {"torch": "2"},
        }
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text(json.dumps(summary))
        return summary

    monkeypatch.setattr(benchmark, "run_cell", run_cell)
    runs, file = tmp_path / "runs", tmp_path / "results.json"
    document = benchmark.main(
        [
            *("--data", str(data), "--runs", str(runs), "--results", str(file)),
            *("--seeds", "2", "--whole-budget-seeds", "1", "--percent", "5", "20"),
            *("--pretrain-steps", "70", "--finetune-steps", "8"),
            *("--pretrain-options=--model.fraction 0.3", "--finetune-options=--data.batch_size 4"),
            "--pretrained-options=--model.learning.layer_decay 0.7",
        ]
    )
    assert json.loads(file.read_text()) == document
    (first, encoder), *others = calls
    assert first[1] == "pretrain/masked_patches_cifar10" and first[-2:] == [
        "--model.fraction",
        "0.3",
    ]
    assert "70" in first and str(data) in first
    assert len(others) == 2 * (2 * 2 + 1)
    for arguments, folder in others:
        assert arguments[:2] == ["-c", "cifar10/masked_patches"]
        assert arguments[arguments.index("--data.batch_size") + 1] == "4"
        for option in ("--model.pretrained", "--model.learning.layer_decay"):
            assert (option in arguments) == (folder.parent.name == "pre-trained")
        steps = arguments[arguments.index("--trainer.max_steps") + 1]
        assert steps == ("78" if "whole" in folder.parent.name else "8")
        assert arguments[arguments.index("--seed_everything") + 1] == folder.name[-1]
    pretrained = [a for a, _ in others if "--model.pretrained" in a]
    assert all(a[a.index("--model.pretrained") + 1] == str(encoder) for a in pretrained)
    assert [entry["n"] for entry in document["rows"]] == [2, 2, 1] * 2
    for entry in document["rows"]:
        assert entry["mean"]["test/acc1"] == pytest.approx(statistics.mean(entry["accuracies"]))
        assert {"hardware", "versions", "commit", "date", "cpu_seconds"} <= set(entry)
    assert [m["percent"] for m in document["margins"]] == [5, 20]
    for margin in document["margins"]:
        assert margin["by_seed"] == pytest.approx([0.25, 0.25]) and margin["std"] < 1e-9
    assert str(tmp_path) not in document["pretraining"]["command"]


def test_cells_of_other_options_are_not_taken_for_these(
    benchmark: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(benchmark, "run_cell", lambda arguments, folder: made.append(folder) or {})
    folder = tmp_path / "runs" / "1_percent" / "seed-0"
    benchmark.cell(["-c", "cifar10"], folder)
    benchmark.cell(["-c", "cifar10"], folder)
    with pytest.raises(SystemExit, match="was made with other options"):
        benchmark.cell(["-c", "cifar10", "--model.compile", "true"], folder)
    assert made == [folder, folder]


def test_an_encoder_that_is_there_is_not_trained_again(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    summary = {"command": "vit fit", "images": {}, "metrics": {}}
    summary |= dict.fromkeys(benchmark.KEPT, 1)
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    options = benchmark.parsed(["--data", "here", "--encoder", str(tmp_path)])
    folder, found = benchmark.pretrained(options)
    assert folder == tmp_path and found["steps"] == 1
