"""What a finished run says about its own answers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.command import TINY, Vit, saved
from vit.inference.trust import Trust


def with_splits(photos: Path) -> Path:
    """Of each class five pictures for val and two for test; one of val has another's label."""
    root = Path("split")
    for path in sorted(photos.rglob("*.jpg")):
        at = int(path.stem)
        part = "train" if at < 5 else "val" if at < 10 else "test"
        name = {"red": "blue", "blue": "grün"}.get(path.parent.name, "red") if at == 9 else ""
        target = root / part / (name or path.parent.name) / f"{path.parent.name}{path.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return root


def extra(run: str) -> dict[str, Any]:
    return json.loads(Path(run, "model", "config.json").read_text(encoding="utf-8"))["extra"]


def test_a_run_with_val_has_a_temperature_that_classify_uses_and_test_repeats(
    vit: Vit, photos: Path
) -> None:
    root = with_splits(photos)
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
    for coverage, why in (("0.95", "needs at least 19 held-out images"), ("1", "in (0, 1)")):
        refused = vit("classify", "run", picture, "--coverage", coverage)
        assert refused.status == 2 and why in refused.err and refused.err.count("\n") == 1

    done = vit(*options, "--steps=1", "--run-dir=next", "--pretrained=run")
    assert done.status == 0, done.err
    assert extra("next").get("temperature") != temperature  # that of other weights


def test_a_probe_without_val_is_measured_on_images_left_out_of_the_fit(
    vit: Vit, photos: Path
) -> None:
    saved(Path("encoder"), None)
    for i, name in enumerate(("red", "blue")):  # else every image is named rightly
        (photos / name / "00.jpg").rename(photos / ("blue", "red")[i] / f"{name}.jpg")
    options = ("--data.batch_size=8", "--data.loading.num_workers=0", "--model.pretrained=encoder")
    done = vit("fit", "-c", "probe", "--data.root", photos, *options, "--run_dir=run")
    assert done.status == 0, done.err
    images = json.loads(Path("run/summary.json").read_text())["images"]["train"]
    where = f"{images} training images, each by a head that was fitted without it"
    assert f"fitted to {where}" in done.err
    assert where in Path("run/report.html").read_text(encoding="utf-8")
    assert extra("run")["temperature"] > 0
    tuned = vit(
        "fit", "-c", "finetune", "--data.root", photos, "--model.pretrained=run", *options[:2],
        "--trainer.max_steps=2", "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    assert tuned.err.count("no validation images: probabilities get no temperature") == 1
    assert "temperature" not in extra("tuned") and Trust.read(Path("tuned/model")) is None
    refused = vit("classify", "tuned", photos, "--coverage=0.9")
    assert refused.status == 2 and "give a run that had a val" in refused.err
