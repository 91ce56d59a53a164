"""Two runs on the same images: the differences that `vit test A B` prints, and what it refuses."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score

from tests.command import TINY, Vit, coloured, saved
from vit.extensions.evaluation.paired import RESAMPLES, difference, mean_difference
from vit.runs.predictions import Predictions

NOW = ("-c", "finetune", *TINY, "--model.pretrained=null", "--trainer.max_steps=1")
PROBE = ("-c", "probe", "--model.pretrained=encoder", "--data.loading.num_workers=0")


def fitted(vit: Vit, photos: Path, name: str, *options: object) -> None:
    done = vit("fit", "--data.root", photos, f"--run_dir={name}", *(options or NOW))
    assert done.status == 0, done.err


def right(vit: Vit, run: str, *options: object) -> list[bool]:
    """By the CSV of `vit predict`, image by image."""
    assert vit("predict", run, "--out=p.csv", *options).status == 0
    with open("p.csv", encoding="utf-8") as stream:
        return [row["correct"] == "1" for row in csv.DictReader(stream)]


def test_two_runs_are_compared_image_by_image(vit: Vit, photos: Path) -> None:
    saved(Path("encoder"), None)
    fitted(vit, photos, "a", *PROBE)
    fitted(vit, photos, "b", *NOW, "--model.optimizer.lr=0")  # its head is zero
    other = coloured(Path("other"))
    given = ("--data.root", other)
    found = json.loads(vit("test", "b", *given, "a", "--json").out)
    before, after = (np.array(right(vit, run, *given)) for run in ("b", "a"))
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    assert (found["images"], found["gained"], found["lost"]) == (36, gained, lost)
    assert found["scores"] == pytest.approx([before.mean(), after.mean()])
    assert found["difference"] == pytest.approx(100 * (after.mean() - before.mean()))
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    expected = binomtest(gained, gained + lost).pvalue
    assert gained > lost and found["p_value"] == pytest.approx(expected)
    assert found["differ"] == (not found["interval"][0] <= 0 <= found["interval"][1])
    text = vit("test", "b", "a", *given).out
    assert "a is better than b" in text and "95 % interval +" in text
    held_out = vit("test", "a", "a")
    assert "no difference is seen" in held_out.out and "by the first alone: 0\n" in held_out.out


def test_other_images_and_other_classes_are_refused(vit: Vit, photos: Path) -> None:
    fitted(vit, photos, "a")
    fitted(vit, photos, "seeded", *NOW, "--seed_everything=1")
    shutil.copytree(photos, "fewer")
    shutil.rmtree("fewer/red")
    fitted(vit, Path("fewer"), "two")
    for path in Path(shutil.copytree(photos, "second")).rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"\0")  # of the same name
    fitted(vit, Path("second"), "day_2")
    for args, words in (
        (("seeded",), "the test images of a are not the test images of seeded; give images that"),
        (("day_2",), "the test images of a are not the test images of day_2; give images that"),
        (("two",), "a and two do not have the same classes: 'red'"),
        (("nowhere",), "nowhere is not a run directory"),
        (("seeded", "--with=x.onnx"), "--with is for one run"),
    ):
        done = vit("test", "a", *args)
        assert done.status == 2 and not done.out and words in done.err.splitlines()[-1], done.err
    rows = [f"{p},{p.parent.name}|any" for p in sorted(photos.rglob("*.jpg"))]
    Path("several.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    fitted(vit, Path("several.csv"), "several")
    done = vit("test", "a", "several")
    assert done.status == 2 and "several gives an image several labels, a gives it one" in done.err
    found = json.loads(vit("test", "several", "several", "--json").out)
    assert found["metric"] == "map" and found["interval"] == [0, 0] and not found["differ"]


def test_the_bootstrap_of_average_precision_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(5)
    labels = (random.random((60, 3)) < 0.4).astype(np.float32)
    scores = [labels * strength + random.random((60, 3)) for strength in (0.2, 0.6)]

    def predicted(table: np.ndarray) -> Predictions:
        order = np.argsort(-table, 1)
        return Predictions(
            indices=np.arange(60), names=[""] * 60, labels=labels, top_classes=order,
            top_probabilities=np.take_along_axis(table, order, 1), label_probabilities=table[:, 0],
        )  # fmt: skip

    found = difference(*map(predicted, scores))
    draws, gains = np.random.default_rng(99), []
    for _ in range(RESAMPLES // 4):
        rows = draws.integers(60, size=60)
        a, b = (average_precision_score(labels[rows], table[rows]) for table in scores)
        gains.append(100 * (b - a))
    assert found["interval"] == pytest.approx(np.percentile(gains, [2.5, 97.5]), abs=2)
    # Of several pairs: the mean of their differences, by the same draws.
    shuffled = labels * 0.4 + random.random((60, 3))
    pairs = [(scores[0], scores[1]), (scores[0], shuffled)]
    several = mean_difference([(predicted(a), predicted(b)) for a, b in pairs])
    means = []
    for draw in range(RESAMPLES // 4 + 1):
        rows = draws.integers(60, size=60) if draw else np.arange(60)
        each = [[average_precision_score(labels[rows], t[rows]) for t in pair] for pair in pairs]
        means.append(100 * np.mean([after - before for before, after in each]))
    assert several["points"] == pytest.approx(means[0])
    assert several["interval"] == pytest.approx(np.percentile(means[1:], [2.5, 97.5]), abs=2)
    assert (several["pairs"], several["images"]) == (2, 60)
    a, b = (average_precision_score(labels, table) for table in scores)
    assert found["difference"] == pytest.approx(100 * (b - a)) and found["differ"]
