"""`vit inspect`: figures and one page, and one line for what does not exist."""

import json
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from tests.command import Vit
from tests.models.small_models import small_bit, small_hybrid, small_vit
from vit.extensions import inspection
from vit.extensions.inspection.subject import load_subject, open_photo
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

NAMES = ["cat", "dog", "owl", "cow", "hen", "pig", "ram"]


def saved(folder: Path, model: nn.Module, size: tuple[int, int] = (32, 32)) -> Path:
    """A model directory."""
    preprocess = Preprocess(image_size=size, crop_fraction=1.0).to_dict()
    classes = NAMES if model.config.num_classes else None  # pyright: ignore
    save_native(folder, model, classes=classes, preprocess=preprocess, extra={})  # pyright: ignore
    return folder


def page_data(folder: Path) -> tuple[str, dict[str, Any]]:
    """The page, and the data in it."""
    html = (folder / "inspection.html").read_text()
    [block] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return html, json.loads(block)


def gray(source: str) -> np.ndarray:
    """A PNG in a data address."""
    return np.asarray(Image.open(BytesIO(b64decode(source.partition(",")[2]))))


def test_the_page_holds_the_maps_of_the_chosen_layers_and_heads(
    vit: Vit, tmp_path: Path, photos: Path
) -> None:
    model = saved(tmp_path / "model", small_vit(num_registers=1))
    images = [photos / "red" / "00.jpg", photos / "blue"]
    done = vit("inspect", model, *images, "--layers", 0, -1, "--heads", 3, 1, "--out", "seen")
    assert done.status == 0, done.err
    written = [Path(line) for line in done.out.splitlines()]
    assert all(path.is_file() for path in written)
    assert {path.name for path in written} >= {
        "filters.png", "positions.png", "attention_distance.png", "head_entropy.png",
        "01_00.png", "01_00_heads.png", "08_06.png", "inspection.html",
    }  # fmt: skip
    assert "the first 8 of 13 images are shown" in done.err
    assert re.search(r"peak memory: [\d,]+ MB", done.err)
    html, data = page_data(tmp_path / "seen")
    assert not re.search(r"https?://(?!www\.w3\.org)", html)
    assert "default-src 'none'" in html and "script-src 'sha256-" in html
    assert data["tokens"] == ["class", "register 1"]
    first = data["images"][0]
    assert list(first["layers"]) == ["layer 0", "layer 2", "feature similarity"]
    assert list(first["layers"]["layer 2"]) == ["mean", "head 1", "head 3"]
    subject = load_subject(str(model))
    weights = inspection.attention(subject.model, open_photo(subject, images[0]).pixels)[0, 0, 3]
    shown = gray(first["layers"]["layer 2"]["head 3"]["src"]).astype(float)
    assert shown.shape == (18, 18)
    np.testing.assert_allclose(shown[:, :2], weights[:, :2] * 255, atol=0.51)
    cells = weights[:, 2:]
    np.testing.assert_allclose(shown[:, 2:], cells / cells.amax(1, keepdim=True) * 255, atol=0.51)
    named = json.loads(vit("classify", model, images[0], "--top", 1, "--json").out)[0]["top"][0]
    assert first["answer"] == f"{named['class']} {named['probability']:.1%}"
    names = [name for name, _ in first["pictures"]]
    assert names[0] == "attention rollout" and names[1].removeprefix("relevance: ") in NAMES


def test_any_size_and_a_class_by_name_or_number(vit: Vit, tmp_path: Path, photos: Path) -> None:
    model = saved(tmp_path / "model", small_hybrid())
    options = ("--image-size", "32x64", "--out", "seen")
    for label in ("owl", "2"):
        done = vit("inspect", model, photos / "red" / "00.jpg", "--class", label, *options)
        assert done.status == 0, done.err
        [image] = page_data(tmp_path / "seen")[1]["images"]
        assert (image["size"], image["grid"], image["cell"]) == ([64, 32], [2, 4], 16)
        names = [name for name, _ in image["pictures"]]
        assert names[1:3] == ["relevance: owl", "Grad-CAM: owl"]
        assert "no filters.png: a hybrid" in done.err
        assert "note: maps have 2 x 4 values; the rest is interpolated" in done.err


def test_a_resnet_has_grad_cam_alone(vit: Vit, tmp_path: Path, photos: Path) -> None:
    model = saved(tmp_path / "model", small_bit(), (64, 64))
    photo = photos / "red" / "00.jpg"
    assert vit("inspect", model, photo, "--class", "hen").status == 0
    _, data = page_data(tmp_path / "inspection")
    assert [name for name, _ in data["images"][0]["pictures"]] == ["Grad-CAM: hen"]
    for option in ("--layers", "--heads"):
        done = vit("inspect", model, photo, option, 0)
        assert (done.status, done.err.count("\n")) == (2, 3), done.err  # with the load report
        assert f"{option}: model is a ResNet without attention" in done.err
    assert "give images for Grad-CAM" in vit("inspect", model).err
    encoder = saved(tmp_path / "encoder", small_bit(num_classes=0), (64, 64))
    for more in ((), ("--class", "cat")):
        done = vit("inspect", encoder, photo, *more)
        assert done.status == 2 and "encoder without classes" in done.err


def test_an_encoder_and_attention_pooling_leave_out_what_they_lack(
    vit: Vit, tmp_path: Path, photos: Path
) -> None:
    photo = photos / "red" / "00.jpg"
    done = vit("inspect", saved(tmp_path / "a", small_vit(num_classes=0)), photo)
    assert done.status == 0 and "no relevance for a class" in done.err
    names = [name for name, _ in page_data(tmp_path / "inspection")[1]["images"][0]["pictures"]]
    assert names == ["attention rollout", "components of features", "similar to the centre"]
    pooled = small_vit(pool="map", class_token=False, pos_embed="none")
    done = vit("inspect", saved(tmp_path / "b", pooled), photo)
    assert done.status == 0 and "pools by attention" in done.err and "no positions.png" in done.err
    _, data = page_data(tmp_path / "inspection")
    assert data["tokens"] == []
    names = [name for name, _ in data["images"][0]["pictures"]]
    assert names == ["components of features", "similar to the centre"]


@pytest.mark.parametrize("extra", [{"projection": True}, {"regression": True}], ids=str)
def test_outputs_that_are_no_classes_are_not_answered(
    vit: Vit, tmp_path: Path, photos: Path, extra: dict[str, Any]
) -> None:
    photo, preprocess = photos / "red" / "00.jpg", Preprocess(image_size=(32, 32)).to_dict()
    save_native("a", small_vit(), classes=None, preprocess=preprocess, extra=extra)
    done = vit("inspect", "a", photo)
    assert done.status == 0 and "is shown as an encoder without classes" in done.err
    [image] = page_data(tmp_path / "inspection")[1]["images"]
    assert image["answer"] == "" and len(image["pictures"]) == 3
    refused = vit("inspect", "a", photo, "--class", "3")
    assert refused.status == 2 and "an encoder without classes" in refused.err


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_of_other_channels_sees_what_it_classifies(
    vit: Vit, tmp_path: Path, channels: int
) -> None:
    values = np.random.default_rng(0).integers(0, 65_536, (40, 32, channels), dtype=np.uint16)
    np.save("scan.npy", values)
    facts = {"mean": (0.5,) * channels, "std": (0.25,) * channels, "channels": channels}
    preprocess = Preprocess(image_size=(32, 32), **facts)
    network = small_vit(in_channels=channels)
    save_native("m", network, classes=NAMES, preprocess=preprocess.to_dict(), extra={})
    done = vit("inspect", "m", "scan.npy", "--out", "seen")
    assert done.status == 0, done.err
    [image] = page_data(tmp_path / "seen")[1]["images"]
    [best] = json.loads(vit("classify", "m", "scan.npy", "--top", 1, "--json").out)
    [answer] = best["top"]
    assert image["answer"] == f"{answer['class']} {answer['probability']:.1%}"


def test_without_images_the_parameters_are_drawn(vit: Vit, tmp_path: Path) -> None:
    model = saved(tmp_path / "model", small_vit())
    done = vit("inspect", model)
    assert done.out.split() == ["inspection/filters.png", "inspection/positions.png"]
    done = vit("inspect", model, "--class", "cat")
    assert done.status == 2 and "--class cat needs images" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layers", 3), "--layers 3: the model has layers 0 to 2"),
        (("--heads", -5), "--heads -5: the model has heads 0 to 3"),
        (("--class", "cta"), "--class cta is none of the model's 7 classes; did you mean"),
        (("--image-size", 30), "image_size=30x30 is not a multiple of patch_size=8"),
        (("--out", "file"), "--out file: cannot be written to (File exists); choose another"),
        (("--device", "nonsense"), "--device nonsense cannot be used"),
        (("absent.png",), "no such picture or folder: absent.png"),
    ],
)
def test_bad_input_is_one_line(
    vit: Vit, tmp_path: Path, photos: Path, options: tuple[Any, ...], message: str
) -> None:
    model = saved(tmp_path / "model", small_vit())
    (tmp_path / "file").write_text("")
    done = vit("inspect", model, photos / "red" / "00.jpg", *options)
    assert done.status == 2
    [line] = [line for line in done.err.splitlines() if line.startswith("vit: ")]
    assert message in line
    assert not list(tmp_path.glob("inspection/*"))
