"""What a finished run says about its own answers, and knows of images of none of its classes."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit as package
from tests.command import TINY, Vit, saved
from tests.extensions.trust.conftest import several_labels, with_splits, with_val
from vit.confidence import TRUST
from vit.data.decode import open_image
from vit.extensions.reports.finisher import finish
from vit.extensions.trust.trust import Trust


def extra(run: str) -> dict[str, Any]:
    return json.loads(Path(run, "model", "config.json").read_text(encoding="utf-8"))["extra"]


def test_a_run_in_bfloat16_reads_its_images_in_float32(vit: Vit, photos: Path) -> None:
    options = ("--data", with_splits(photos, Path("split")), *TINY, "--steps=2")
    options = (*options, "--trainer.precision=bf16-true", "--run-dir=run")
    done = vit("fit", "-c", "cifar10", *options)
    assert done.status == 0, done.err
    assert "fitted to 15 validation images" in done.err


@pytest.mark.usefixtures("finishing")
def test_a_temperature_is_used_by_classify_and_repeated_by_test(vit: Vit, photos: Path) -> None:
    root = with_splits(photos, Path("split"))
    picture = next((root / "test").rglob("*.jpg"))
    options = ("fit", "-c", "cifar10", "--data", root, *TINY)
    done = vit(*options, "--steps=9", "--run-dir=run")
    assert done.status == 0, done.err
    assert "fitted to 15 validation images, which also chose the weights" in done.err
    temperature, trust = extra("run")["temperature"], Trust.read(Path("run/model"))
    assert trust is not None and trust.images == 15 and trust.temperature == temperature != 1
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    assert summary["confidence"]["temperature"] == temperature
    assert [row["coverage"] for row in summary["confidence"]["sets"]] == [0.8, 0.9]
    assert {"test/nll", "test/nll_scaled", "test/ece_scaled"} <= summary["metrics"].keys()
    assert summary["metrics"]["test/nll"] == pytest.approx(summary["metrics"]["test/loss"])
    again = json.loads(vit("test", "run", "--json").out)
    assert again == {k: pytest.approx(v) for k, v in summary["metrics"].items() if "test/" in k}
    finish(Path("run"))
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert f"logits / {temperature:.3g}, fitted to 15 validation images" in page
    assert "<h3>Sets of classes</h3>" in page
    answers = json.loads(vit("classify", "run", picture, "--json", "--coverage=0.9").out)
    raw = json.loads(vit("classify", "run", picture, "--json", "--raw").out)
    [first, second], [a, b] = ([k["probability"] for k in x[0]["top"][:2]] for x in (answers, raw))
    assert math.log(a / b) / temperature == pytest.approx(math.log(first / second), rel=1e-4)
    assert answers[0]["set"][0] == answers[0]["top"][0]["class"] and "set" not in raw[0]
    assert "  set: " in vit("classify", "run", picture, "--coverage=0.9").out
    assert vit("classify", "run", picture, "--coverage=0.9", "--out=a.csv").status == 0
    head, row = Path("a.csv").read_text(encoding="utf-8").splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert cells["set"].split("|") == answers[0]["set"]
    refused = vit("classify", "run", picture, "--coverage=0.9", "--raw", "--out=a.csv")
    assert refused.status == 2 and "a.csv was begun with raw False, not True" in refused.err
    for coverage, why in (("0.95", "needs at least 19 held-out images"), ("1", "in (0, 1)")):
        refused = vit("classify", "run", picture, "--coverage", coverage)
        assert refused.status == 2 and why in refused.err and refused.err.count("\n") == 1

    done = vit(*options, "--steps=1", "--run-dir=next", "--pretrained=run")
    assert done.status == 0, done.err
    assert extra("next").get("temperature") != temperature  # that of other weights


@pytest.mark.usefixtures("finishing")
def test_a_probe_without_val_is_measured_on_images_out_of_the_fit(vit: Vit, photos: Path) -> None:
    saved(Path("encoder"), None)
    for i, name in enumerate(("red", "blue")):  # else every image is named rightly
        (photos / name / "00.jpg").rename(photos / ("blue", "red")[i] / f"{name}.jpg")
    options = ("--data.batch_size=8", "--data.loading.num_workers=0", "--model.pretrained=encoder")
    done = vit("fit", "-c", "probe", "--data.root", photos, *options, "--run_dir=run")
    assert done.status == 0, done.err
    images = json.loads(Path("run/summary.json").read_text())["images"]["train"]
    where = f"{images} training images, each by a head that was fitted without it"
    assert f"fitted to {where}" in done.err
    assert extra("run")["temperature"] > 0
    tuned = vit(
        "fit", "-c", "finetune", "--data.root", photos, "--model.pretrained=run", *options[:2],
        "--trainer.max_steps=2", "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    # Of a run that knows two of the classes: it may have been trained on these very images.
    (photos / "red").rename(photos / "new")
    more = ("--data.root", photos, "--model.pretrained=run", *options[:2], "--run_dir=more")
    more = vit("fit", "-c", "probe", *more)
    assert more.status == 0, more.err
    assert "rows of 2 classes kept by name" in more.err and "left out of the fit" not in more.err
    for name, done in {"tuned": tuned, "more": more}.items():
        assert done.err.count("no images to measure on: probabilities get no temperature") == 1
        assert "temperature" not in extra(name) and Trust.read(Path(name, "model")) is None
    refused = vit("classify", "tuned", photos, "--coverage=0.9")
    assert refused.status == 2 and "give a run that had a val" in refused.err


def fitted(vit: Vit, *options: object) -> str:
    done = vit("fit", "-c", "cifar10", "--steps=2", "--run-dir=run", *options, *TINY)
    assert done.status == 0, done.err
    return done.err


@pytest.mark.usefixtures("finishing")
def test_a_run_tells_which_of_its_images_are_the_least_alike(vit: Vit, photos: Path) -> None:
    root = with_val(photos, Path("split"))
    fitted(vit, "--data", root)
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    found = summary["unknown"]
    assert found["images"] == 12
    assert found["accuracies"][99] == pytest.approx(summary["metrics"]["val/acc1"])
    finish(Path("run"))
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "<h2>None of these</h2>" in page and "(see Confidence); all of known" in page
    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None and stored.usual.shape == (1, 12)
    answers = json.loads(vit("classify", "run", root / "val", "--unknown=0.5", "--json").out)
    refused = [row["unknown"] for row in answers]
    assert 1 <= sum(refused) <= 5  # the seventh of twelve and those like it are answered
    alike = package.load("run").predict(str(root / "val"), unknown=0.5, batch_size=5)
    assert [prediction.unknown for prediction in alike] == refused
    shown = vit("classify", "run", root / "val", "--unknown=0.5", "--top=1").out
    assert shown.count("  none of these; the most alike:\n") == sum(refused)
    assert vit("classify", "run", root / "val", "--unknown=0.5", "--out=a.csv").status == 0
    rows = [line.split(",") for line in Path("a.csv").read_text(encoding="utf-8").splitlines()]
    column = rows[0].index("unknown")
    assert [row[column] for row in rows[1:]] == [str(unknown) for unknown in refused]
    assert package.load("run").predict(str(root / "val"))[0].unknown is None


def test_with_several_labels_the_energy_is_that_of_their_sigmoids(vit: Vit, photos: Path) -> None:
    root = with_val(photos, Path("split"))
    fitted(vit, "--data", several_labels(root), "--run-dir=several")
    stored = Trust.read(Path("several/model"))
    assert stored is not None and stored.usual is not None and stored.usual.shape == (1, 12)
    classifier = package.load("several")
    pictures = [open_image(path) for path in sorted((root / "val").rglob("*.jpg"))]
    logits = classifier.outputs(torch.stack([classifier.preprocess(p) for p in pictures]))[0]
    expected = -np.log1p(np.exp(logits.double().numpy())).sum(1)
    np.testing.assert_allclose(stored.usual[0].numpy(), np.sort(expected), rtol=1e-4)
    picture = next((root / "val").rglob("*.jpg"))
    [answer] = json.loads(vit("classify", "several", picture, "--unknown=0.5", "--json").out)
    assert answer["unknown"] in (True, False) and "labels" in answer


def test_a_head_on_frozen_features_needs_no_val(vit: Vit, photos: Path) -> None:
    weights = saved(Path("weights"), classes=None)
    options = ("--data", photos, "--model.pretrained", weights, "--data.batch_size=8")
    done = vit("fit", "-c", "probe", *options, "--run-dir=run", "--data.loading.num_workers=0")
    assert done.status == 0, done.err
    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None
    images = json.loads(Path("run/summary.json").read_text())["images"]["train"]
    assert stored.usual.shape == (1, images)  # each by a head that was fitted without it
    gray = Path("gray.png")
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(gray)
    assert vit("classify", "run", gray, "--unknown=0.5").status == 0


@pytest.mark.parametrize(
    ("share", "reason"),
    [("0.5", "unknown=0.5 needs held-out images"), ("1.5", "unknown=1.5 must be in (0, 1)")],
)
def test_a_model_without_scores_and_a_share_above_one_are_one_line(
    vit: Vit, photos: Path, share: str, reason: str
) -> None:
    done = vit("classify", saved(Path("model")), photos, "--unknown", share)
    assert done.status == 2 and done.out == "" and not Path("model", TRUST).exists()
    assert reason in done.err.splitlines()[-1]
