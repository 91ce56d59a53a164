"""`vit average`: the mean of the weights of runs, its score beside theirs, and what is refused."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.metrics import f1_score, precision_recall_curve

import vit as package
from tests.command import TINY, Vit, photos, saved, vit
from vit.extensions.averaging.soup import Soup

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
    for path in Path(shutil.copytree(photos, "second")).rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"\0")  # of the same name
    fitted(vit, Path("second"), "day_2")
    for other, message in {
        "narrow": "a and narrow have other architecture.",
        "cut": "a and cut have other train, val, test images; average runs of the same",
        "colours": "a and colours have other preprocessing.mean",
        "day_2": "a and day_2 have other val images; average runs of the same",
        "named": "do not have the same classes",
    }.items():
        done = vit("average", "a", other, "--out", "soup")
        assert done.status == 2 and message in done.err, done.err
    other_val = ("--data.root", "other_val")
    shutil.copytree(photos, "other_val/val")
    done = vit("average", "a", "cut", *other_val, "--out", "soup")
    assert done.status == 2 and "a and cut have other train" in done.err, done.err
    shutil.rmtree("cut/model")
    Path("cut/summary.json").unlink()
    done = vit("average", "a", "cut", *other_val, "--out", "soup")  # by its checkpoint
    assert done.status == 2 and "a and cut have other train" in done.err, done.err
    fitted(vit, photos, "whole", "--data.splits.val_fraction=0", "--data.splits.test_fraction=0")
    done = vit("average", "whole", "whole", "--out", "soup")
    assert done.status == 2 and "--data FOLDER, with val/ and without test/" in done.err
    for option in ("--trainer.devices=2", "--trainer.num_nodes=3"):
        done = vit("average", *runs, "--out", "soup", option)
        assert done.status == 2 and f"leave {option[:-2]} out" in done.err
    assert "at least two" in vit("average", "a", "--out", "soup").err
    assert not Path("soup").exists()
    assert "--out a is not empty" in vit("average", *runs, "--out", "a").err
    done = vit("average", "whole", "whole", *other_val, "--out", "soup")
    assert done.status == 0 and "on 36 images of val" in done.out, done.err
    assert not [*Path().glob(".*")]


def test_a_stop_during_the_scoring_leaves_nothing(
    vit: Vit, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {*Path().iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(Soup, "evaluate", raising(KeyboardInterrupt))
        assert vit("average", *runs, "--out", "soup").status == 130
    assert {*Path().iterdir()} == before
    Path("soup").mkdir()
    Path("link").symlink_to("soup")
    done = vit("average", *runs, "--out", "link")
    assert done.status == 0, done.err
    assert {file.name for file in Path("soup").iterdir()} == {
        "config.json", "model.safetensors", "trained_on"
    }  # fmt: skip


def raising(error: type[BaseException]) -> Callable[..., None]:
    def function(*_: object) -> None:
        raise error

    return function


def test_thresholds_of_several_labels_are_those_of_highest_f1_of_the_average(
    vit: Vit, photos: Path
) -> None:
    saved(Path("encoder"), None)
    rows = [
        f"{path},{path.parent.name}|{'even' if int(path.stem) % 2 == 0 else 'odd'},"
        f"{'val' if int(path.stem) % 3 == 0 else 'train'}"
        for path in sorted(photos.rglob("*.jpg"))
    ]
    Path("several.csv").write_text("\n".join(["path,label,split", *rows]), encoding="utf-8")
    for seed in (0, 1):
        fitted(vit, Path("several.csv"), f"run{seed}", f"--seed={seed}")
    assert vit("average", "run0", "run1", "--out", "soup").status == 0
    classifier = package.load("soup")
    held_out = [row.split(",")[:2] for row in rows if row.endswith(",val")]
    answers = classifier.predict([path for path, _ in held_out], top=len(classifier.classes))
    for number, name in enumerate(classifier.classes):
        truth = [name in labels.split("|") for _, labels in held_out]
        scores = [dict(zip(p.classes, p.probabilities, strict=True))[name] for p in answers]
        precision, recall, _ = precision_recall_curve(truth, scores)
        best = max(2 * precision * recall / np.maximum(precision + recall, 1e-9))
        chosen = [score > classifier.thresholds[number] for score in scores]
        assert f1_score(truth, chosen) == pytest.approx(best), name
    assert set(classifier.thresholds) != {0.5}
