"""`vit average`: the mean of the weights of runs, its score beside theirs, and what is refused."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vit as package
from tests.command import TINY, Vit, photos, saved, vit

__all__ = ["photos", "vit"]

FIT = ("-c", "finetune", *TINY[1:], "--model.pretrained=encoder", "--trainer.max_steps=3")
FIT = (*FIT, "--data.splits.seed=0", "--data.splits.val_fraction=0.4", "--model.optimizer.lr=0.01")


def fitted(vit: Vit, photos: Path, name: str, *options: object) -> None:
    done = vit("fit", *FIT, "--data.root", photos, f"--run_dir={name}", *options)
    assert done.status == 0, done.err


@pytest.fixture
def runs(vit: Vit, photos: Path) -> list[str]:
    """Two runs that differ in the order of the images."""
    saved(Path("encoder"), None)
    fitted(vit, photos, "a")
    fitted(vit, photos, "b", "--seed=1", "--model.optimizer.lr=0.003")
    return ["a", "b"]


def test_the_average_is_the_mean_of_the_weights_and_is_scored_beside_the_runs(
    vit: Vit, photos: Path, runs: list[str]
) -> None:
    done = vit("average", *runs, "--out", "soup", "--json")
    assert done.status == 0, done.err
    result = json.loads(done.out)
    a, b, soup = (load_file(f"{run}/model.safetensors") for run in ("a/model", "b/model", "soup"))
    assert soup.keys() == a.keys() and any((a[name] != b[name]).any() for name in a)
    for name, values in soup.items():
        mean = (a[name].astype(np.float64) + b[name].astype(np.float64)) / 2
        assert (values == mean.astype(values.dtype)).all(), name
    classifier = package.load("soup")
    right = []
    for run in ("a", "b", "soup"):
        vit("predict", "a" if run == "soup" else run, "--split=val", "--out=p.csv")
        rows = list(csv.DictReader(Path("p.csv").open(encoding="utf-8")))
        answers = [row["correct"] == "1" for row in rows]
        if run == "soup":
            predicted = classifier.predict([photos / row["image"] for row in rows])
            answers = [p.label == row["label"] for p, row in zip(predicted, rows, strict=True)]
        right.append(np.array(answers))
    *scores, score = (float(answers.mean()) for answers in right)
    assert result["scores"] == pytest.approx(scores) and result["score"] == pytest.approx(score)
    for answers, pair in zip(right, result["against"], strict=False):
        assert pair["gained"] == (right[2] & ~answers).sum()
        assert pair["lost"] == (answers & ~right[2]).sum()
        gain = 100 * (right[2].mean() - answers.mean())
        assert pair["difference"] == pytest.approx(gain)
    assert Path("soup/trained_on").read_bytes() == Path("a/model/trained_on").read_bytes()
    assert "a  " in vit("average", *runs, "--out", "more").out


def test_runs_of_other_kinds_are_refused_before_anything_is_written(
    vit: Vit, photos: Path, runs: list[str]
) -> None:
    fitted(vit, photos, "narrow", "--model.pretrained=null", TINY[0])
    fitted(vit, photos, "cut", "--data.splits.seed=1")
    fitted(vit, photos, "colours", "--data.inputs.mean=[0.1,0.1,0.1]")
    shutil.copytree(photos, "other")
    Path("other/red").rename("other/rot")
    fitted(vit, Path("other"), "named")
    for other, message in {
        "narrow": "a and narrow have other architecture.",
        "cut": "the val images of a are not the val images of cut",
        "colours": "a and colours have other preprocessing.mean",
        "named": "do not have the same classes",
    }.items():
        done = vit("average", "a", other, "--out", "soup")
        assert done.status == 2 and message in done.err, done.err
    assert "at least two" in vit("average", "a", "--out", "soup").err
    assert not Path("soup").exists()
    assert "--out a is not empty" in vit("average", *runs, "--out", "a").err
