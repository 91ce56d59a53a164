"""`vit classify`: pictures and folders in, names and probabilities out."""

import json
from pathlib import Path

import pytest
import torch

import vit as package
from tests.cli.conftest import Vit
from vit.checkpoints.native import save_native
from vit.data.preprocess import Preprocess


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    net = package.create_model(
        "vit_ti16", num_classes=6, image_size=16, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(net.head.weight)
    save_native(
        tmp_path / "model",
        net,
        classes=list("abcdef"),
        preprocess=Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict(),
        extra={},
    )
    return tmp_path / "model"


def test_json_has_the_top_five_of_every_picture(vit: Vit, model: Path, photos: Path) -> None:
    done = vit("classify", model, photos / "red" / "00.jpg", photos / "blue", "--json")
    rows = json.loads(done.out)
    assert done.status == 0
    assert len(rows) == 1 + 12
    assert all(len(row["top"]) == 5 for row in rows)
    expected = package.load(model).predict(photos / "red" / "00.jpg")[0]
    assert [entry["class"] for entry in rows[0]["top"]] == expected.classes
    assert [e["probability"] for e in rows[0]["top"]] == pytest.approx(
        expected.probabilities, abs=1e-5
    )


def test_the_text_shows_percentages(vit: Vit, model: Path, photos: Path) -> None:
    lines = vit("classify", model, photos / "red" / "00.jpg", "--top", 2).out.splitlines()
    assert lines[0].endswith("00.jpg")
    assert len(lines) == 3
    assert all("%" in line for line in lines[1:])


def test_an_unreadable_picture_is_named_or_skipped(vit: Vit, model: Path, photos: Path) -> None:
    (photos / "red" / "00.jpg").write_bytes(b"<html>")
    done = vit("classify", model, photos / "red")
    assert done.status == 2
    assert "00.jpg" in done.err
    done = vit("classify", model, photos / "red", "--on_error", "skip", "--json")
    assert done.status == 0
    assert len(json.loads(done.out)) == 11
    assert "1 of 12 pictures were skipped" in done.err


@pytest.mark.parametrize("argument", ["nothing.jpg", "empty"])
def test_nothing_to_classify_is_a_clear_error(vit: Vit, model: Path, argument: str) -> None:
    Path("empty").mkdir()
    done = vit("classify", model, argument)
    assert done.status == 2
    assert argument in done.err
