"""The laboratories of pre-training: draws, quick runs and the cost of mask tokens."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.papers.pretraining import cost as mae_cost
from benchmarks.papers.pretraining import page
from benchmarks.papers.pretraining import run as script
from benchmarks.papers.self_supervised import continued
from benchmarks.papers.self_supervised import page as dino_page
from benchmarks.papers.self_supervised import run as dino
from tests.command import saved


def test_the_quick_run_is_complete_and_is_not_made_twice(
    noise: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = noise("abc")
    monkeypatch.setattr(script, "QUICK_ARMS", (script.RANDOM, script.PREFIX))
    runs, file = pictures.parent / "runs", pictures.parent / "results.json"
    words = ["--quick", "--data", str(pictures), "--runs", str(runs), "--results", str(file)]
    rows = script.main(words)["rows"]
    assert [(row["arm"], row["seed"]) for row in rows] == [(a, 0) for a in script.QUICK_ARMS]
    assert [row["pretraining_cpu_seconds"] > 0 for row in rows] == [False, True]
    columns = {"1 %", "10 %", "ridge 1", "logistic", "attentive", "neighbours"}
    for row in rows:
        assert columns <= row.keys() and all(0 <= row[column] <= 100 for column in columns)
    saved = json.loads(file.read_text())
    monkeypatch.setattr(script.Laboratory, "row", None)  # nothing is left to train
    assert json.loads(json.dumps(script.main(words)))["rows"] == saved["rows"]
    text = page.texts({**saved, "rows": saved["rows"]})
    assert "**AIM, prefix**" in text["scores"] and text["verdicts"].count("not complete") == 18
    with pytest.raises(SystemExit, match="other settings"):
        script.main(words[1:])


def test_shares_lie_in_each_other_and_val_in_none(noise: Callable[..., Path]) -> None:
    pictures, found = noise("abc"), {}
    for percent in (10, 50):
        file = script.draw(pictures, percent, script.QUICK, pictures.parent / f"{percent}.csv")
        with file.open(newline="") as stream:
            rows = [*csv.DictReader(stream)]
        found[percent] = {s: {r["path"] for r in rows if r["split"] == s} for s in ("train", "val")}
        counts = Counter(row["label"] for row in rows if row["split"] == "train")
        assert counts == dict.fromkeys("abc", 30 * percent // 100)
        assert Counter(r["split"] for r in rows)["test"] == 6
    assert found[10]["train"] < found[50]["train"] and found[10]["val"] == found[50]["val"]
    assert not found[50]["train"] & found[50]["val"] and len(found[50]["val"]) == 6


def test_the_cost_of_mask_tokens_is_counted_and_timed() -> None:
    [row] = mae_cost.main(["--quick", "--rounds", "1"])["rows"]
    assert row["model"] == "vit_b16" and row["seconds"] > 0
    assert row["operations_ratio"] > 1.3
    assert row["ratio_min"] == row["ratio"] == row["ratio_max"] > 0


def test_dino_is_trained_beside_the_others_in_its_time(noise: Callable[..., Path]) -> None:
    pictures = noise("abc")
    words = ["--quick", "--data", str(pictures), "--runs", str(pictures.parent / "runs")]
    content = dino.main([*words, "--steps", "2", "--seeds", "1"])
    rows = {row["arm"]: row for row in content["rows"]}
    assert list(rows) == [dino.RANDOM, dino.TEACHER, dino.STUDENT, *dino.OTHERS]
    assert rows[dino.STUDENT]["cpu_seconds"] == rows[dino.TEACHER]["cpu_seconds"] > 0
    assert rows[dino.RANDOM]["cpu_seconds"] == rows[dino.RANDOM]["steps"] == 0
    for row in rows.values():
        scores = [row[f"{kind}, {layer}"] for kind in dino_page.KINDS for layer in dino_page.LAYERS]
        assert all(0 <= score <= 100 for score in scores)
    assert dino_page.equal_time(content).count("one seed") == 4


def test_weights_are_trained_on_and_scored_before_and_after(noise: Callable[..., Path]) -> None:
    pictures = noise("abcdefgh")
    weights = saved(pictures.parent / "weights", patch_size=14, image_size=56)
    words = ["--quick", "--data", str(pictures), "--runs", str(pictures.parent / "runs")]
    words += ["--weights", str(weights), "--steps", "10"]
    content = continued.main([*words, "--seeds", "1"])
    assert [(row["seed"], row["steps"]) for row in content["rows"]] == [(None, 0), (0, 10)]
    assert content["rows"][1]["cpu_seconds"] > 0
    assert dino_page.continued(content).count("| one seed |") == len(dino_page.SCORES)
