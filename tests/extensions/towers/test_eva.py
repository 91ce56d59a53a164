"""EVA-02's layers compute what its paper says, and what is not its form is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("timm")

from benchmarks.parity.families import scatter
from tests.extensions.towers.peers import SMALL, described_as
from vit.errors import UserError
from vit.extensions.adaptation.lora import add_lora, merge_lora
from vit.extensions.formats.exporting import NativeInfo
from vit.extensions.formats.timm import write
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.weights.pretrained import load_pretrained

NAME = "eva02_base_patch16_clip_224"
TOWER = {"order": "yx", "offset": 0, "key_bias": False, "inner_norm": True, "mlp_norm": True}
CONFIG: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "width": 32,
    "depth": 2,
    "mlp_dim": 44,
    "num_heads": 2,
    "num_classes": 5,
    "activation": "swiglu",
    "tower": TOWER,
}


def changed(folder: Path, name: str = NAME, **changes: Any) -> Path:
    """A model of one layer whose config.json says something else."""
    side = 32 if "patch16" in name else 28
    return described_as(folder, name, changes, depth=1, img_size=side, **SMALL)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_grid_indexing": "xy"},
        {"rope_rotate_half": True},
        {"rope_type": "mixed"},
        {"attn_type": "rope"},
        {"use_pre_transformer_norm": True},
        {"num_reg_tokens": 2},
        {"global_pool": "map"},
        {"gated_attn": True},
        {"ref_feat_shape": None},
    ],
)
def test_another_form_is_refused_by_name(change: dict[str, Any], tmp_path: Path) -> None:
    [(name, value)] = change.items()
    changed(tmp_path, **change)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "global_pool": None}))
    with pytest.raises(UserError, match=f"timm's {name}={value!r} ") as raised:
        load_pretrained(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", [{"global_pool": "map"}, {"use_post_norm": True}])
def test_an_eva_g_of_another_form_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    changed(tmp_path, "eva_giant_patch14_224", **change)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "global_pool": None}))
    with pytest.raises(UserError, match=f"timm's {next(iter(change))}="):
        load_pretrained(tmp_path)


@pytest.mark.parametrize("name", [NAME, "eva02_tiny_patch14_224", "eva_giant_patch14_224"])
def test_a_file_without_its_description_is_refused(name: str, tmp_path: Path) -> None:
    """Whatever is said of it: rotary positions leave no tensors, and rows change their places."""
    changed(tmp_path, name)
    (tmp_path / "config.json").unlink()
    for facts in ({}, {"tower": TOWER, "num_heads": 4, "activation": "swiglu"}):
        with pytest.raises(UserError, match=r"no config\.json that names its model") as raised:
            load_pretrained(tmp_path / "model.safetensors", **facts)
        assert "\n" not in str(raised.value)


def small(**changes: Any) -> Any:
    return scatter(build_model(ViTConfig(**{**CONFIG, **changes})))


@pytest.mark.parametrize("post_norm", [False, True])
def test_every_parameter_gets_a_gradient_and_the_keys_no_bias(post_norm: bool) -> None:
    model = small(tower={**TOWER, "post_norm": post_norm}).train()
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []
    queries, keys, values = model.blocks[0].attn.qkv.bias.grad.chunk(3)
    assert queries.any() and values.any() and not keys.any()


def test_a_bias_of_keys_counts_after_a_rotation_alone() -> None:
    """It is the same score for all keys of a query, which softmax does not see, unless the keys are
    turned by different angles: the bias of EVA-02's keys is none, not one that may be trained."""
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    for period, moves in ((10_000.0, True), (None, False)):
        model = small(tower={**TOWER, "key_bias": True, "period": period}).double()
        with torch.no_grad():
            before = model(images)
            for block in model.blocks:
                block.attn.qkv.bias[32:64] += 1
            difference = (model(images) - before).abs().max()
        assert difference > 1e-4 if moves else difference < 1e-12


@torch.no_grad()
def test_the_norms_are_where_the_paper_has_them() -> None:
    """A layer of one token, whose attention returns its values, by hand in float64."""
    for post_norm in (False, True):
        model = small(depth=1, tower={**TOWER, "post_norm": post_norm}).double()
        block, x = model.blocks[0], torch.randn(1, 1, 32, dtype=torch.float64)
        place = model._place((4, 4), x)._replace(rotation=None)

        def layer(name: str, x: torch.Tensor, rows: slice = slice(None)) -> torch.Tensor:
            part = block.get_submodule(name)  # noqa: B023
            if isinstance(part, nn.LayerNorm):
                x = (x - x.mean(-1, keepdim=True)) / (
                    x.var(-1, correction=0, keepdim=True) + 1e-6
                ).sqrt()
                return x * part.weight + part.bias
            return x @ part.weight[rows].mT + part.bias[rows]  # pyright: ignore

        def attention(x: torch.Tensor) -> torch.Tensor:
            return layer("attn.proj", layer("attn.norm", layer("attn.qkv", x, slice(64, 96))))

        def mlp(x: torch.Tensor) -> torch.Tensor:
            gate, value = layer("mlp.fc1", x).chunk(2, -1)
            return layer("mlp.fc2", layer("mlp.norm", gate * gate.sigmoid() * value))

        y = x
        for part, norm in ((attention, "norm1"), (mlp, "norm2")):
            y = y + (layer(norm, part(y)) if post_norm else part(layer(norm, y)))
        torch.testing.assert_close(block(x, place), y, rtol=0, atol=1e-12)


def test_low_rank_factors_merge_into_layers_with_norms() -> None:
    model, images = small(), torch.randn(2, 3, 32, 32)
    add_lora(model, 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_(std=0.1)
        before = model(images)
        merge_lora(model)
        torch.testing.assert_close(model(images), before, rtol=0, atol=1e-5)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"activation": "gelu"}, "tower: mlp_norm=true needs activation='swiglu', not 'gelu'"),
    ({"tower": {**TOWER, "period": 0}}, "tower: period=0 "),
    ({"tower": {**TOWER, "post_norm": 1}}, "tower: post_norm=1 "),
    ({"num_heads": 16}, "the head size must be a multiple of 4"),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES)
def test_a_mistake_is_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        build_model(ViTConfig(**{**CONFIG, **fields}))
    assert "\n" not in str(raised.value)


UNWRITTEN: list[tuple[dict[str, Any], str]] = [
    ({"tower": {**TOWER, "order": "xy"}}, "timm's EVA-02 has order='yx'"),
    ({"tower": {**TOWER, "key_bias": True}}, "timm's Perception Encoder has order='xy'"),
    ({"layer_norm_eps": 1e-5}, "timm's EVA-02 has no layer_norm_eps=1e-05"),
    ({"num_registers": 2}, "timm's EVA-02 has no num_registers=2"),
    ({"layer_scale": 0.1, "tower": {**TOWER, "post_norm": True}}, "has no layer_scale=0.1"),
]


@pytest.mark.parametrize(("fields", "message"), UNWRITTEN)
def test_what_timm_does_not_have_is_not_written(fields: dict[str, Any], message: str) -> None:
    model = small(**fields)
    with pytest.raises(UserError, match=message):
        write(model.config, model.state_dict(), NativeInfo())
