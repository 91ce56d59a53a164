from typing import Any

import pytest

from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import Model
from vit.training.optimizers.param_groups import param_groups

SMALL = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 3, "mlp_dim": 16, "num_heads": 2}
BLOCK = {"attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"}


def vit(**options: object) -> VisionTransformer:
    return VisionTransformer(ViTConfig(**{**SMALL, "num_classes": 3, **options}))  # pyright: ignore


def groups_of(model: Model, **options: Any) -> list[dict]:
    depth, tokens = len(model.layer_channels), model.no_weight_decay()
    return param_groups(model.named_parameters(), depth=depth, no_weight_decay=tokens, **options)


def decaying(model: Model) -> set[str]:
    groups = groups_of(model)
    assert all(g.get("weight_decay", 0.0) == 0.0 for g in groups)
    return {name for g in groups if "weight_decay" not in g for name in g["names"]}


@pytest.mark.parametrize(
    ("options", "others"),
    [
        (
            {"num_registers": 2, "layer_scale": 0.1, "distillation_token": True},
            {"head_dist.weight"},
        ),
        (
            {"pool": "map", "class_token": False, "representation_size": 8},
            {f"attn_pool.{n}.weight" for n in ("q", "kv", "proj", "mlp.fc1", "mlp.fc2")}
            | {"pre_logits.fc.weight"},
        ),
    ],
)
def test_only_kernels_decay(options: dict[str, Any], others: set[str]) -> None:
    # big_vision decays `.*/kernel$`: every dense layer, head and patches included.
    blocks = {f"blocks.{i}.{name}" for i in range(3) for name in BLOCK}
    assert decaying(vit(**options)) == blocks | {"patch_embed.proj.weight", "head.weight"} | others


def test_layer_decay_by_hand_for_three_layers() -> None:
    model = vit(num_registers=1)
    scales = {n: g["lr_scale"] for g in groups_of(model, layer_decay=0.5) for n in g["names"]}
    assert scales.keys() == dict(model.named_parameters()).keys()
    for name in ("cls_token", "pos_embed", "reg_token", "patch_embed.proj.weight"):
        assert scales[name] == 0.0625
    assert scales["blocks.0.attn.qkv.weight"] == scales["blocks.0.norm1.bias"] == 0.125
    assert scales["blocks.1.mlp.fc1.weight"] == 0.25
    assert scales["blocks.2.attn.proj.bias"] == 0.5
    assert scales["norm.weight"] == scales["head.weight"] == scales["head.bias"] == 1.0


def test_layer_decay_of_a_resnet_goes_by_stages() -> None:
    model = ResNet(ResNetConfig(depths=(1, 1), num_classes=3, image_size=32))
    scales = {n: g["lr_scale"] for g in groups_of(model, layer_decay=0.5) for n in g["names"]}
    assert scales["stem.conv.weight"] == 0.125
    assert scales["stages.0.blocks.0.conv1.weight"] == 0.25
    assert scales["stages.1.blocks.0.conv3.weight"] == 0.5
    assert scales["norm.weight"] == scales["head.fc.weight"] == 1.0


def test_every_parameter_is_in_one_group_and_frozen_ones_in_none() -> None:
    model = vit()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    groups = groups_of(model, layer_decay=0.9)
    assert sorted(n for g in groups for n in g["names"]) == ["head.bias", "head.weight"]
    assert all(g["lr_scale"] == 1 for g in groups)
