"""Towers prepared as by their tags give what their home gives, at odd sizes, both ways."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("timm")

import timm
from safetensors.torch import load_file

from tests.extensions.towers.peers import (
    SMALL,
    assert_equal,
    in_float64,
    patch_of,
    prepared,
    saved,
)
from vit.extensions.formats.convert import convert
from vit.weights.pretrained import load_pretrained

TOWERS: dict[str, dict[str, Any]] = {
    "vit_base_patch16_clip_224.openai": SMALL,
    "vit_base_patch32_clip_224.laion2b": SMALL,
    "vit_base_patch16_clip_224.metaclip_400m": SMALL,
    "vit_base_patch16_clip_224.dfn2b": SMALL,
    "vit_base_patch32_clip_256.datacompxl": SMALL,
    "vit_base_patch16_siglip_224.webli": SMALL,
    "vit_base_patch32_siglip_256.v2_webli": SMALL,
    "vit_so400m_patch16_siglip_256.v2_webli": SMALL,
    "vit_pe_core_tiny_patch16_384.fb": {},
    "vit_pe_spatial_gigantic_patch14_448.fb": SMALL,
    "eva02_small_patch14_336.mim_in22k_ft_in1k": SMALL,
    "eva02_base_patch16_clip_224.merged2b": SMALL,
}
"""Weights -> the arguments by which the test makes them smaller."""
NARROW_MLP = {**SMALL, "mlp_ratio": 3.0}
"""An MLP that is narrower than the pooling's."""
OTHERS: dict[str, dict[str, Any]] = {
    "vit_pe_core_base_patch16_224.fb": NARROW_MLP,
    "vit_pe_core_large_patch14_336.fb": NARROW_MLP,
    "vit_pe_core_gigantic_patch14_448.fb": NARROW_MLP,
    "vit_pe_lang_large_patch14_448.fb": NARROW_MLP,
    "vit_pe_lang_gigantic_patch14_448.fb": NARROW_MLP,
    "vit_pe_spatial_tiny_patch16_512.fb": {},
    "eva_giant_patch14_336.m30m_ft_in22k_in1k": SMALL,
    "eva_giant_patch14_clip_224.laion400m": SMALL,
    "eva02_tiny_patch14_224.mim_in22k": {},
    "eva02_large_patch14_448.mim_m38m_ft_in22k": {**SMALL, "num_classes": 50},
    "eva02_large_patch14_224.mim_m38m": {**SMALL, "init_values": 0.1},
    "eva02_enormous_patch14_clip_224.laion2b_plus": SMALL,
}
"""Further kinds of the last two families."""
QUICK = ("openai", "metaclip_400m")
"""Tags that timm computes exactly in the entry with the quick GELU alone."""


def home(name: str, model: Any, **options: Any) -> Any:
    """The model of the weights' training."""
    if not name.endswith(QUICK):
        return model
    twin = timm.create_model(name.replace("_clip_2", "_clip_quickgelu_2"), **options)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


@pytest.mark.parametrize("name", [*TOWERS, *OTHERS])
@torch.no_grad()
def test_a_tower_gives_what_its_home_gives_and_goes_back(name: str, tmp_path: Path) -> None:
    side = patch_of(name)
    options = {"depth": 2, "img_size": (3 * side, 5 * side), **(TOWERS | OTHERS)[name]}
    model = saved(name, tmp_path / "theirs", **options)
    peer = home(name, model, **options)
    ours, report = load_pretrained(tmp_path / "theirs")
    images, theirs = prepared(tmp_path / "theirs", report)
    assert_equal(ours.eval()(images), peer(theirs))
    assert_equal(ours.features(images), peer.forward_features(theirs))  # pyright: ignore

    convert(tmp_path / "theirs", tmp_path / "back", "timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    assert torch.equal(again(theirs), peer(theirs))
    read, read_report = load_pretrained(tmp_path / "back")
    assert read.config == ours.config and read_report.unanswerable == report.unanswerable
    assert ("is a projection" in report.unanswerable) == ("_clip_" in name or "pe_core" in name)
    before, after = (
        load_file(tmp_path / place / "model.safetensors") for place in ("theirs", "back")
    )
    if "eva_giant" in name:  # written as timm's plain ViT, whose keys have biases
        for i in range(2):
            block = f"blocks.{i}.attn."
            q, v = before.pop(f"{block}q_bias"), before.pop(f"{block}v_bias")
            before[f"{block}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())

    convert(tmp_path / "theirs", tmp_path / "native", "native")
    native, _ = load_pretrained(tmp_path / "native")
    states = native.state_dict(), ours.state_dict()
    assert native.config == ours.config and [*states[0]] == [*states[1]]
    assert all(torch.equal(*pair) for pair in zip(*(s.values() for s in states), strict=True))

    odd = (5 * side, 2 * side)
    peer.set_input_size(odd)
    images = torch.randn(1, 3, *odd)
    assert_equal(ours(images), peer(images))
    resized, _ = load_pretrained(tmp_path / "theirs", image_size=odd)
    assert_equal(resized.eval()(images), peer(images))
    # timm resamples a table of positions in float32, so float64 is shown at the model's own size.
    images = theirs.double()
    assert_equal(ours.double()(images), in_float64(again)(images), 1e-9)


@torch.no_grad()
def test_a_photo_that_patches_do_not_fill_is_cut(tmp_path: Path) -> None:
    """timm's model for 384 pixels leaves out the last six, 27 patches of 14 being 378; here the
    middle of the same picture is seen."""
    name = "vit_so400m_patch14_siglip_384.webli"
    peer = saved(name, tmp_path, depth=1, **SMALL)
    ours, report = load_pretrained(tmp_path)
    images, theirs = prepared(tmp_path, report)
    # Of 575 columns, 95.5 and 98.5 are before the two crops: both round to the even number.
    assert theirs.shape[-2:] == (384, 384) and torch.equal(images, theirs[..., 3:381, 2:380])
    assert any("384x384 pixels: images are cut to 378x378" in note for note in report.notes)
    padded = torch.nn.functional.pad(images, (0, 6, 0, 6), value=9.0)
    assert_equal(ours.eval()(images), peer(padded))
