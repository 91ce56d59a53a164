"""What a finished run knows of images that show none of its classes."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit as package
from tests.command import TINY, Vit, saved
from vit.inference.trust import FILE, Trust

LINES = "score of unknown images: energy, no classes could be left out to choose a score"


def with_val(photos: Path, root: Path) -> Path:
    """Of each class eight pictures for train, four for val."""
    for path in sorted(photos.rglob("*.jpg")):
        place = root / ("val" if int(path.stem) >= 8 else "train") / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return root


def fitted(vit: Vit, *options: object) -> str:
    done = vit("fit", "-c", "cifar10", "--steps=2", "--run-dir=run", *options, *TINY)
    assert done.status == 0, done.err
    return done.err


def test_a_run_tells_which_of_its_images_are_the_least_alike(vit: Vit, photos: Path) -> None:
    root = with_val(photos, Path("split"))
    fitted(vit, "--data", root)
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    found = summary["unknown"]
    assert found["groups"] == 3 and found["score"] == min(found["areas"], key=found["areas"].get)
    assert found["images"] == 12
    assert found["accuracies"][99] == pytest.approx(summary["metrics"]["val/acc1"])
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "<h2>None of these</h2>" in page and f"ordered by the score <i>{found['score']}" in page

    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None and stored.usual.shape == (3, 12)
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


def test_with_two_classes_none_is_left_out_and_with_several_labels_the_energy_decides(
    vit: Vit, photos: Path
) -> None:
    for path in (photos / "blue").iterdir():
        path.unlink()
    (photos / "blue").rmdir()
    root = with_val(photos, Path("split"))
    assert LINES in fitted(vit, "--data", root)
    rows = ["path,label,split"]
    for path in sorted(root.rglob("*.jpg")):
        label = "red|grün" if path.stem in ("01", "09") else path.parent.name
        rows.append(f"{path},{label},{path.parent.parent.name}")
    Path("several.csv").write_text("\n".join(rows), encoding="utf-8")
    fitted(vit, "--data", "several.csv", "--run-dir=several")
    stored = Trust.read(Path("several/model"))
    assert stored is not None and stored.neighbours is None and stored.unknown == "energy"
    assert stored.usual is not None and stored.usual.shape == (1, 8)
    picture = next((root / "val").rglob("*.jpg"))
    [answer] = json.loads(vit("classify", "several", picture, "--unknown=0.5", "--json").out)
    assert answer["unknown"] in (True, False) and "labels" in answer


def test_a_head_on_frozen_features_needs_no_val(vit: Vit, photos: Path) -> None:
    weights = saved(Path("weights"), classes=None)
    options = ("--data", photos, "--model.pretrained", weights, "--data.batch_size=8")
    done = vit("fit", "-c", "probe", *options, "--run-dir=run", "--data.loading.num_workers=0")
    assert done.status == 0, done.err
    stored = Trust.read(Path("run/model"))
    assert stored is not None and stored.usual is not None and stored.neighbours is not None
    assert abs(len(stored.neighbours) - stored.usual.shape[1]) <= 1
    gray = Path("gray.png")
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(gray)
    assert vit("classify", "run", gray, "--unknown=0.5").status == 0


@pytest.mark.parametrize(
    ("share", "reason"),
    [("0.5", "unknown=0.5 needs scores of validation images"), ("1.5", "--unknown=1.5 must be in")],
)
def test_a_model_without_scores_and_a_share_above_one_are_one_line(
    vit: Vit, photos: Path, share: str, reason: str
) -> None:
    done = vit("classify", saved(Path("model")), photos, "--unknown", share)
    assert done.status == 2 and done.out == "" and not Path("model", FILE).exists()
    assert reason in done.err.splitlines()[-1]
