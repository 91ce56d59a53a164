"""The experiment on positions: every arm, continued where it was, and what it reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.papers.positions import page
from benchmarks.papers.positions import run as positions
from vit.extensions.variants.table import POSITIONS


def test_arms_are_trained_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "positions.json"
    content = positions.main(["--quick", "--results", str(file)])
    assert [(row["data"], row["arm"]) for row in content["rows"]] == [
        ("digits", arm) for arm in positions.ARMS
    ]
    assert {part["name"] for part in positions.ARMS.values()} == set(POSITIONS)
    saved = json.loads(file.read_text())
    monkeypatch.setattr(positions, "train", None)  # nothing is left to train
    assert (
        json.loads(json.dumps(positions.main(["--quick", "--results", str(file)])))["rows"]
        == (saved["rows"])
    )
    text = "\n".join(page.texts(saved).values())
    assert "not finished" in text  # one seed
    for arm in positions.ARMS:
        assert f"| {arm} |" in text
    saved["settings"]["digits"]["lr"] = 1.0
    file.write_text(json.dumps(saved))
    with pytest.raises(SystemExit, match="other settings"):
        positions.main(["--quick", "--results", str(file)])


def test_a_training_is_a_function_of_its_seed_and_the_pool_is_not_trained_on() -> None:
    data = positions.splits(positions.read_digits(), "cpu")
    train, pool, test = (data[name] for name in ("train", "pool", "test"))
    assert (len(pool[0]), len(test[0])) == (200, 359)
    assert len(train[0]) + len(pool[0]) + len(test[0]) == 1_797
    assert torch.bincount(pool[1]).tolist() == [20] * 10
    setting = positions.QUICK["digits"]
    rows = [positions.train(setting, data, "relative", seed) for seed in (0, 0, 1)]
    for row in rows:
        del row["seconds"]
    assert rows[0] == rows[1] != rows[2]
    assert list(rows[0]["curve"]) == [1, 2, 3, 4]


def test_folders_are_read_in_another_order_and_tested_at_other_sizes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 3)):
        for label in range(10):
            folder = tmp_path / split / str(label)
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                pixels[0, 0] = 25 * label
                Image.fromarray(pixels).save(folder / f"{i:02}.png")
    sizes: dict[str, Any] = {"steps": 4, "batch": 8, "width": 16, "depth": 1, "warmup": 1}
    setting = positions.Setting(pixels=32, patch_size=8, flip=True, test_per_class=2, **sizes)
    images, labels, tests = positions.read_folder(tmp_path, setting)
    assert images.shape == (260, 3, 32, 32) and tests == 20
    assert ((images[:, 0, 0, 0] * 255).round().long() == 25 * labels).all()
    assert labels[:240].diff().bool().sum() > 100
    row = positions.train(setting, positions.splits((images, labels, tests), "cpu"), "none", 0)
    assert list(row["by_size"]) == [24, 32, 48, 64]
    assert row["by_size"][32] == row["accuracy"]
