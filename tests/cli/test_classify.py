"""`vit classify`: pictures and folders in, names and probabilities out."""

import json
from pathlib import Path

import pytest
import torch

import vit as package
from tests.command import Vit
from vit.checkpoints.native import save_native
from vit.preprocessing import Preprocess


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    net = package.create_model(
        "vit_ti16", num_classes=6, image_size=16, depth=1, width=24, mlp_dim=48, num_heads=2
    )
    torch.nn.init.normal_(net.head.weight)
    steps = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(tmp_path / "model", net, classes=list("abcdef"), preprocess=steps, extra={})
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


def test_an_unreadable_picture_is_named_or_skipped(vit: Vit, model: Path, photos: Path) -> None:
    (photos / "red" / "00.jpg").write_bytes(b"<html>")
    done = vit("classify", model, photos / "red")
    assert done.status == 2
    assert "00.jpg" in done.err
    done = vit("classify", model, photos / "red", "--on_error", "skip", "--json")
    assert done.status == 0
    assert len(json.loads(done.out)) == 11
    assert "1 of 12 pictures were skipped" in done.err


def test_an_empty_folder_is_named(vit: Vit, model: Path) -> None:
    Path("empty").mkdir()
    done = vit("classify", model, "empty")
    assert done.status == 2 and "empty" in done.err


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_answers_before_an_unreadable_picture_are_printed(
    flags: tuple[str, ...], vit: Vit, model: Path, photos: Path
) -> None:
    good = [photos / "red" / f"{i:02}.jpg" for i in range(3)] * 14
    (photos / "broken.jpg").write_bytes(b"<html>")
    done = vit("classify", model, *good, photos / "broken.jpg", good[0], "--top", 2, *flags)
    assert done.status == 2 and done.err.count("\n") == 1 and "broken.jpg" in done.err
    if flags:
        assert [row["image"] for row in json.loads(done.out)] == [str(path) for path in good]
    else:
        assert [line for line in done.out.splitlines() if "%" not in line] == list(map(str, good))


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_outputs_that_are_not_finite_are_refused(
    flags: tuple[str, ...], vit: Vit, model: Path, photos: Path
) -> None:
    net = package.load(model).model
    torch.nn.init.constant_(net.head.weight, float("nan"))  # pyright: ignore
    steps = Preprocess(image_size=(16, 16)).to_dict()
    save_native("nan", net, classes=list("abcdef"), preprocess=steps, extra={})  # pyright: ignore
    done = vit("classify", "nan", photos / "red" / "00.jpg", *flags)
    assert done.status == 2 and "nan" not in done.out.lower()
    assert done.err.count("\n") == 1 and "outputs are not finite numbers" in done.err
