"""Weights by name: one download, and the same model wherever a name is taken.

The only server is one of ours, on 127.0.0.1.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn

import vit
from tests.extensions.formats.mirror import (
    BACKBONE,
    CLASSIFIER,
    IN21K,
    Mirror,
    path_of,
    random_file,
)
from vit.errors import UserError
from vit.extensions.formats import published
from vit.extensions.formats.convert import convert
from vit.weights.pretrained import inspect_pretrained, load_pretrained
from vit.weights.report import LoadReport


def row(name: str = CLASSIFIER) -> published.Published:
    return published.table()[name]


def changed(monkeypatch: pytest.MonkeyPatch, name: str, **values: object) -> None:
    """The table with another value in one row."""
    rows = {**published.table(), name: replace(row(name), **values)}  # pyright: ignore
    monkeypatch.setattr(published, "table", lambda: rows)


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def silent(report: LoadReport) -> None:
    """Instead of printing it."""


def test_every_way_to_name_weights_gives_the_same_model(mirror: Mirror) -> None:
    mirror.put(CLASSIFIER)
    reports: list[LoadReport] = []
    first = vit.create_model(CLASSIFIER, report=reports.append)
    [report] = reports
    assert report.source == CLASSIFIER and report.notes == []
    assert report.preprocess == row().preprocess() and report.classes is not None
    assert report.classes[0] == "tench"
    others = [
        vit.create_model("vit_ti16", pretrained=True, report=silent),
        vit.create_model("vit_tiny_patch16_224", pretrained=True, report=silent),
        vit.create_model("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", report=silent),
        vit.create_model("vit_ti16", pretrained=CLASSIFIER, report=silent),
        load_pretrained("vit_ti16")[0],
    ]
    assert all(equal(first, other) for other in others)
    assert [asked[:2] for asked in mirror.asked] == [("GET", path_of(CLASSIFIER))]
    assert vit.create_model(CLASSIFIER, pretrained=False).preprocess is None  # fresh weights


def test_true_without_a_name_says_what_is_missing() -> None:
    with pytest.raises(UserError, match=r"create_model\('vit_s16', pretrained=True\)"):
        vit.create_model(pretrained=True)
    with pytest.raises(UserError, match="nobody publishes any of vit_giant14"):
        vit.create_model("vit_giant14", pretrained=True)


def test_host_size_and_licence_are_said_first(
    mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.put(CLASSIFIER)
    row().path()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"{CLASSIFIER}: 127.0.0.1, ~23 MB, licence apache-2.0"
    row().path()
    assert capsys.readouterr().err == ""
    with pytest.raises(UserError, match="404"):
        row("vit_b16.swag_ft_in1k").path()
    assert "347 MB, licence cc-by-nc-4.0, NOT FOR COMMERCIAL USE\n" in capsys.readouterr().err


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_one_line_says_what_to_do(
    offline: str, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    mirror.shutdown()
    mirror.server_close()
    with pytest.raises(UserError) as raised:
        load_pretrained(CLASSIFIER)
    message = str(raised.value)
    assert f"`vit download {CLASSIFIER} --to DIR`" in message and "\n" not in message
    assert f"put the file at {row().place()}" in message


def test_a_published_digest_is_compared_by_its_first_digits(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = mirror.put(CLASSIFIER)
    changed(monkeypatch, CLASSIFIER, sha256="00000000")
    with pytest.raises(UserError, match="does not have the SHA-256 00000000, but"):
        row().path()
    assert not row().place().exists()
    changed(monkeypatch, CLASSIFIER, sha256=hashlib.sha256(content).hexdigest()[:8])
    path = row().path()
    path.write_bytes(content + b"x")
    with pytest.raises(UserError, match="SHA-256"):
        row().path()


def test_another_model_under_that_name_is_refused(mirror: Mirror) -> None:
    mirror.put(CLASSIFIER, mirror.put(BACKBONE))
    with pytest.raises(UserError, match=r"vit_ti16: .*patch_size=14"):
        load_pretrained(CLASSIFIER)
    mirror.put(IN21K, random_file(CLASSIFIER))  # the normalisation is the row's
    with pytest.raises(UserError, match=r"1,000 .*21,843"):
        load_pretrained(IN21K)
    row(IN21K).place().unlink()
    mirror.put(IN21K)
    with pytest.raises(UserError, match=r"of vit_s16: vit_s16.augreg"):
        load_pretrained(IN21K, "vit_s16")


def test_the_21843_classes_have_words(mirror: Mirror, tmp_path: Path) -> None:
    mirror.put(IN21K)
    info = inspect_pretrained(IN21K)
    assert info.classes is not None and len(info.classes) == info.config.num_classes == 21_843
    Image.new("RGB", (300, 200), "red").save(tmp_path / "photo.png")
    [prediction] = vit.load(IN21K).predict(tmp_path / "photo.png", top=3)
    assert set(prediction.classes) <= set(info.classes)


def test_a_head_of_zeros_counts_as_none(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in several of the paper's files, whose rows have no outputs."""
    mirror.put(IN21K)
    changed(monkeypatch, IN21K, outputs=0)
    model, report = load_pretrained(IN21K)
    assert model.config.num_classes == 0 and "head" in report.left_out
    assert inspect_pretrained(IN21K).config == model.config
    tuned, report = load_pretrained(IN21K, num_classes=7)
    assert report.reinitialised == ["head"] and tuned.config.num_classes == 7
    with pytest.raises(UserError, match=r"--model.pretrained vit_ti16"):
        vit.load(IN21K)


def features(model: nn.Module, side: int) -> Tensor:
    images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return model.eval()(images)


def test_a_backbone_is_as_large_as_its_images(mirror: Mirror) -> None:
    """DINOv2 has positions for 518 pixels and is published at 224; both give the same features."""
    mirror.put(BACKBONE)
    model, report = load_pretrained("dinov2_s14")
    assert model.config.size == (224, 224) and model.config.num_classes == 0
    assert report.resized == ["positions from 37x37 to 16x16 patches (bicubic_offset)"]
    assert report.preprocess == row(BACKBONE).preprocess()
    assert inspect_pretrained(BACKBONE).config == model.config
    whole, report = load_pretrained(BACKBONE, image_size=518)
    assert report.resized == [] and report.preprocess is not None
    assert report.preprocess["image_size"] == [518, 518]
    assert torch.allclose(features(model, 224), features(whole, 224), atol=1e-5)
    with pytest.raises(UserError, match="is an encoder without classes"):
        vit.load("facebook/dinov2-small")


def test_a_conversion_by_name_keeps_the_positions_of_the_file(
    mirror: Mirror, tmp_path: Path
) -> None:
    mirror.put(BACKBONE)
    convert(BACKBONE, tmp_path / "name", "huggingface")
    convert(row(BACKBONE).path(), tmp_path / "file", "huggingface")
    described = json.loads((tmp_path / "name" / "config.json").read_text())
    assert described["image_size"] == 518
    one, other = (safetensors.torch.load_file(tmp_path / name / "model.safetensors")
                  for name in ("name", "file"))  # fmt: skip
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    prepared = json.loads((tmp_path / "name" / "preprocessor_config.json").read_text())
    assert prepared["crop_size"] == {"height": 224, "width": 224}
