"""timm's models give timm's logits here, at their own size and at another one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from tests.models.small_models import filled
from vit.errors import UserError
from vit.weights.pretrained import inspect_pretrained, load_pretrained

timm = pytest.importorskip("timm")

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2, "img_size": 32, "patch_size": 8}
STEM = {"depth": 1, "embed_dim": 64, "num_heads": 2, "img_size": 64}
MODELS = {
    "cls": ("vit_base_patch16_224", SMALL),
    "gap with fc_norm": ("vit_base_patch16_224", {**SMALL, "global_pool": "avg"}),
    "map": ("vit_base_patch16_224", {**SMALL, "global_pool": "map", "class_token": False}),
    "map beside a class token": ("vit_base_patch16_224", {**SMALL, "global_pool": "map"}),
    "distilled": ("deit_base_distilled_patch16_224", SMALL),
    "deit3": ("deit3_base_patch16_224", SMALL),
    "registers": ("vit_small_patch14_reg4_dinov2", {**SMALL, "patch_size": 8}),
    "registers with positions": ("vit_base_patch16_224", {**SMALL, "reg_tokens": 3}),
    "dinov2": ("vit_small_patch14_dinov2", SMALL),
    "swiglu": ("vit_giant_patch14_dinov2", {**SMALL, "mlp_ratio": 4}),
    "no positions": ("vit_base_patch16_224", {**SMALL, "pos_embed": "none"}),
    "hybrid root": ("vit_tiny_r_s16_p8_224", STEM),
    "hybrid R26": ("vit_small_r26_s32_224", STEM),
}


def saved(model: torch.nn.Module, directory: Path, **description: Any) -> Path:
    save_file(model.state_dict(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(description))
    return directory


@pytest.mark.parametrize("kind", MODELS)
def test_logits_equal_timm(kind: str, tmp_path: Path) -> None:
    name, arguments = MODELS[kind]
    peer = filled(timm.create_model(name, num_classes=5, dynamic_img_size=True, **arguments))
    described = {"input_size": [3, *[arguments["img_size"]] * 2]}
    saved(peer, tmp_path, model_args=arguments, pretrained_cfg=described)
    ours, report = load_pretrained(tmp_path, num_heads=2)
    assert report.loaded == len(peer.state_dict())
    assert not report.resized and not report.reinitialised
    ours, peer = ours.double().eval(), peer.double()
    native = (arguments["img_size"],) * 2
    # Positions are added to registers in float32 when they are loaded, not in double at run time.
    tolerance = 1e-6 if kind == "registers with positions" else 1e-9
    assert_same(outputs(ours, native), outputs(peer, native), tolerance)
    other = (native[0] * 2, native[1] * 3 // 2)
    if kind.startswith("hybrid"):
        other = (96, 128)
    # timm interpolates positions in float32.
    assert_same(outputs(ours, other), outputs(peer, other), 1e-6)


def test_bit_logits_equal_timm(tmp_path: Path) -> None:
    sizes = {"layers": [1, 2, 1, 1], "width_factor": 1, "num_classes": 5, "in_chans": 1}
    peer = filled(timm.models.resnetv2._create_resnetv2_bit("resnetv2_50x1_bit", **sizes))
    ours, _ = load_pretrained(saved(peer, tmp_path))
    ours, peer = ours.double().eval(), peer.double()
    for size in ((64, 64), (97, 65)):
        assert_same(outputs(ours, size, 1), outputs(peer, size, 1))


def test_tables_that_are_no_square_need_the_size(tmp_path: Path) -> None:
    peer = filled(timm.create_model("vit_tiny_patch16_224", depth=1, img_size=(32, 80)))
    saved(peer, tmp_path)
    with pytest.raises(ValueError, match=r"10|11 entries.*image_size"):
        load_pretrained(tmp_path)
    ours, _ = load_pretrained(tmp_path, image_size=(32, 80))
    assert_same(outputs(ours.double().eval(), (32, 80)), outputs(peer.double(), (32, 80)))


def test_official_deit3_and_dinov2_names_are_understood(tmp_path: Path) -> None:
    peer = timm.create_model("vit_small_patch14_reg4_dinov2", **{**SMALL, "patch_size": 8})
    state = dict(filled(peer).state_dict())
    cls, reg, table = (state.pop(n) for n in ("cls_token", "reg_token", "pos_embed"))
    slot = torch.randn(1, 1, 64)
    official = {k.replace(".ls1.gamma", ".gamma_1"): v for k, v in state.items()}
    official |= {"cls_token": cls - slot, "register_tokens": reg, "mask_token": torch.zeros(1, 64)}
    official |= {"pos_embed": torch.cat([slot, table], 1)}
    torch.save({"model": official}, tmp_path / "dinov2.pth")
    ours, report = load_pretrained(tmp_path / "dinov2.pth", num_heads=2)
    assert "mask_token" in report.left_out
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours.features(x), peer.forward_features(x), atol=1e-4, rtol=1e-4)


def test_biases_in_the_description_count_more_than_the_entrys(tmp_path: Path) -> None:
    name, arguments = "vit_base_patch16_224_miil", {**SMALL, "qkv_bias": True}
    peer = filled(timm.create_model(name, num_classes=5, **arguments))
    ours, _ = load_pretrained(saved(peer, tmp_path, architecture=name, model_args=arguments))
    assert_same(outputs(ours.double().eval(), (32, 32)), outputs(peer.double(), (32, 32)))


def test_a_file_that_lacks_biases_which_its_description_has_is_refused(tmp_path: Path) -> None:
    peer = timm.create_model("vit_base_patch16_224", num_classes=5, **SMALL)
    state = {name: t for name, t in peer.state_dict().items() if not name.endswith("qkv.bias")}
    save_file(state, tmp_path / "model.safetensors")
    description = {"architecture": "vit_base_patch16_224", "model_args": SMALL}
    (tmp_path / "config.json").write_text(json.dumps(description))
    with pytest.raises(UserError, match="2 missing"):
        load_pretrained(tmp_path)


def test_a_description_of_one_dictionary_is_read_as_timm_reads_it(tmp_path: Path) -> None:
    """timm wrote pretrained_cfg and the architecture together until 0.8."""
    name = "deit_tiny_distilled_patch16_224"
    peer = timm.create_model(name, num_classes=3, depth=1, img_size=32)
    facts = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.4] * 3, "crop_pct": 1.0}
    facts |= {"architecture": name, "interpolation": "bilinear", "labels": ["x", "y", "z"]}
    info = inspect_pretrained(saved(peer, tmp_path, **facts))
    theirs, *_ = timm.models._hub._parse_model_cfg(dict(facts), {})
    assert info.classes == theirs["label_names"] == ["x", "y", "z"]
    assert info.preprocess is not None
    assert (info.preprocess["mean"], info.preprocess["std"]) == ([0.5] * 3, [0.4] * 3)
    assert (info.preprocess["interpolation"], info.preprocess["crop_fraction"]) == ("bilinear", 1)


def test_the_size_of_the_model_is_that_of_its_images(tmp_path: Path) -> None:
    arguments = {**SMALL, "img_size": [96, 96], "patch_size": 16}
    peer = timm.create_model("vit_base_patch16_224", num_classes=5, **arguments)
    size = {"input_size": [3, 160, 160], "fixed_input_size": True, "crop_pct": 0.9}
    described = {**size, "mean": [0.5] * 3, "std": [0.5] * 3}
    saved(peer, tmp_path, architecture="vit_base_patch16_224", num_classes=5,
          model_args=arguments, pretrained_cfg=described)  # fmt: skip
    theirs = timm.create_model(f"local-dir:{tmp_path}")
    size = timm.data.resolve_model_data_config(theirs)["input_size"]
    preprocess = inspect_pretrained(tmp_path).preprocess
    assert preprocess is not None and tuple(preprocess["image_size"]) == size[1:] == (96, 96)


def test_a_named_norm_of_a_clip_has_timms_usual_epsilon(tmp_path: Path) -> None:
    name = "vit_base_patch16_clip_224"
    arguments = {**SMALL, "norm_layer": "layernorm"}
    peer = filled(timm.create_model(name, num_classes=5, **arguments))
    described = {"tag": "openai_ft_in1k"}
    saved(peer, tmp_path, architecture=name, model_args=arguments, pretrained_cfg=described)
    ours, _ = load_pretrained(tmp_path)
    assert_same(outputs(ours.double().eval(), (32, 32)), outputs(peer.double(), (32, 32)))


def test_registers_beside_a_distillation_token_are_refused(tmp_path: Path) -> None:
    """timm builds DeiT's distilled models with both, and computes without the registers."""
    model = timm.create_model("deit_tiny_distilled_patch16_224", depth=1, reg_tokens=4)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(UserError, match="registers beside a distillation token"):
        load_pretrained(tmp_path / "weights.pth")
