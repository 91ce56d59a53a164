"""The experiment on positions: every arm, continued where it was, by seeds and splits."""

import json
from pathlib import Path

import pytest
import torch

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
