"""timm's CLIP gives what timm gives, with the GELU of the weights' origin, both ways."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.parity.families import scatter
from vit.errors import UserError
from vit.extensions.backbones.image_transform import ImageTransform
from vit.extensions.formats.convert import convert
from vit.preprocessing import Preprocess
from vit.weights.pretrained import load_pretrained

timm = pytest.importorskip("timm")

SIZE = (48, 80)
EQUAL = 1e-5
"""Of the largest output, in float32."""
TAGS = {
    "vit_base_patch16_clip_224.openai": ("quick_gelu", "center", 0.9),
    "vit_base_patch16_clip_quickgelu_224.openai": ("quick_gelu", "center", 0.9),
    "vit_base_patch16_clip_224.openai_ft_in1k": ("gelu", "center", 0.9),
    "vit_base_patch16_clip_384.openai_ft_in12k_in1k": ("gelu", "squash", 0.95),
    "vit_base_patch16_clip_224.laion400m_e32": ("gelu", "center", 1.0),
    "vit_base_patch16_clip_224.dfn2b": ("gelu", "center", 1.0),
    "vit_base_patch16_clip_224.metaclip_400m": ("quick_gelu", "center", 1.0),
    "vit_xsmall_patch16_clip_224.tinyclip_yfcc15m": ("gelu", "center", 0.9),
}
"""Weights -> GELU of their training, and the crop of their preprocessing (timm's own table)."""


def saved(name: str, folder: Path, **options: Any) -> Any:
    """timm's model with random weights, saved as timm saves it."""
    from timm.models import save_for_hf

    model = scatter(timm.create_model(name, depth=1, img_size=SIZE, **options))
    save_for_hf(model, str(folder), safe_serialization=True)
    return model


def twin(name: str, model: Any) -> Any:
    """The same weights in timm's entry with the quick form."""
    other = timm.create_model(name.replace("_clip_2", "_clip_quickgelu_2"), depth=1, img_size=SIZE)
    other.load_state_dict(model.state_dict())
    return other.eval()


def photo() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((131, 97), Image.Resampling.BICUBIC)


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= EQUAL * theirs.abs().max()


@pytest.mark.parametrize("name", TAGS)
@torch.no_grad()
def test_a_photo_gives_what_the_weights_home_gives(name: str, tmp_path: Path) -> None:
    activation, mode, crop = TAGS[name]
    model = saved(name, tmp_path / "theirs")
    peer = twin(name, model) if activation == "quick_gelu" else model
    described = json.loads((tmp_path / "theirs/config.json").read_text())["pretrained_cfg"]
    config = timm.data.resolve_data_config({}, pretrained_cfg=described)
    assert (config["crop_mode"], config["crop_pct"]) == (mode, crop)
    theirs = timm.data.create_transform(**config)(photo())[None]
    ours, report = load_pretrained(tmp_path / "theirs")
    assert ours.config.activation == activation and ours.config.pre_norm
    assert report.preprocess is not None
    images = ImageTransform(Preprocess.from_dict(report.preprocess))(photo())[None]
    assert_equal(ours.eval()(images), peer(theirs))
    assert ("is a projection" in report.unanswerable) == ("_ft_" not in name)
    convert(tmp_path / "theirs", tmp_path / "back", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    assert torch.equal(again(theirs), peer(theirs))
    read, _ = load_pretrained(tmp_path / "back")
    assert read.config == ours.config


def test_a_new_head_on_quick_weights_leaves_the_gelu_open(tmp_path: Path) -> None:
    """timm keeps the tag of the weights that a training started from, with either form."""
    model = saved("vit_base_patch32_clip_224.openai", tmp_path, num_classes=7)
    both = "tag 'openai', .* give activation='quick_gelu' or 'gelu'"
    with pytest.raises(UserError, match=both) as raised:
        load_pretrained(tmp_path)
    assert "\n" not in str(raised.value)
    images = torch.randn(2, 3, 64, 96)
    model.set_input_size((64, 96))
    with torch.no_grad():
        ours, _ = load_pretrained(tmp_path, activation="gelu", image_size=(64, 96))
        assert_equal(ours.eval()(images), model(images))


def test_without_a_tag_the_gelu_is_open(tmp_path: Path) -> None:
    saved("vit_base_patch16_clip_224.laion2b", tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    del described["pretrained_cfg"]["tag"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"has no tag of its weights.*'quick_gelu' or 'gelu'"):
        load_pretrained(tmp_path)
    described["architecture"] += ".laion2b"  # as older versions of timm wrote it
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert load_pretrained(tmp_path)[0].config.activation == "gelu"


def test_a_bare_file_needs_its_gelu(tmp_path: Path) -> None:
    model = saved("vit_xsmall_patch16_clip_224", tmp_path / "described")
    file = tmp_path / "clip.pth"
    torch.save(model.state_dict(), file)
    with pytest.raises(UserError, match="activation='quick_gelu' or 'gelu'"):
        load_pretrained(file, image_size=SIZE)
    ours, report = load_pretrained(file, image_size=SIZE, activation="gelu")
    images = torch.randn(2, 3, *SIZE)
    with torch.no_grad():
        assert_equal(ours.eval()(images), model(images))
    assert any("epsilon 1e-05" in note for note in report.notes)


def test_a_bare_perception_encoder_is_not_taken_for_a_clip(tmp_path: Path) -> None:
    model = timm.create_model("vit_pe_core_tiny_patch16_384", depth=1, img_size=32)
    torch.save(model.state_dict(), tmp_path / "pe.pth")
    with pytest.raises(UserError, match="may be a Perception Encoder"):
        load_pretrained(tmp_path / "pe.pth", activation="gelu")
