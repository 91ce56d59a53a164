"""The derived sizes of a configuration, against networks that are built: ours, and timm's."""

from typing import Any

import pytest
import torch
from torch import nn

from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import ZOO, build_model, model_config

# Unnamed, but with every field that a derived size depends on.
VARIANTS: list[dict[str, Any]] = [
    {"pool": "cls_gap", "num_registers": 4},
    {"distillation_token": True, "pos_embed_class_slot": False},
    {"distillation_token": True, "num_registers": 2},
    {"pool": "gap", "class_token": False, "num_registers": 3},
    {"pool": "map", "class_token": False},
    {"activation": "swiglu", "representation_size": 100},
    {"pool": "cls_gap", "representation_size": 100},
    {"stem_depths": (), "in_channels": 1},
    {"stem_depths": (1, 2)},
    {"image_size": (64, 96), "in_channels": 2},
]
SMALL = {"image_size": 64, "width": 64, "depth": 1, "mlp_dim": 48, "num_heads": 2}

# Our name -> timm's name for the same architecture.
TIMM = {
    "vit_ti16": "vit_tiny_patch16_224",
    "vit_s16": "vit_small_patch16_224",
    "vit_s32": "vit_small_patch32_224",
    "vit_b16": "vit_base_patch16_224",
    "vit_b32": "vit_base_patch32_224",
    "vit_l16": "vit_large_patch16_224",
    "vit_l32": "vit_large_patch32_224",
    "vit_h14": "vit_huge_patch14_224",
    "vit_giant14": "vit_giant_patch14_224",
    "vit_gigantic14": "vit_gigantic_patch14_224",
    "r_vit_ti16": "vit_tiny_r_s16_p8_224",
    "r26_vit_s32": "vit_small_r26_s32_224",
    "r50_vit_b16": "vit_base_r50_s16_224",
    "r50_vit_l32": "vit_large_r50_s32_224",
    "bit_r50x1": "resnetv2_50x1_bit",
    "bit_r50x3": "resnetv2_50x3_bit",
    "bit_r101x1": "resnetv2_101x1_bit",
    "bit_r101x3": "resnetv2_101x3_bit",
    "bit_r152x2": "resnetv2_152x2_bit",
    "bit_r152x4": "resnetv2_152x4_bit",
}


def configurations() -> list[Any]:
    named = [pytest.param(entry.config, id=name) for name, entry in ZOO.items()]
    varied = [pytest.param(ViTConfig(**{**SMALL, **v}), id=str(v)) for v in VARIANTS]
    return named + varied


def channels_of_parts(model: nn.Module) -> tuple[int, list[int]]:
    """Outputs of the first convolution, and of the last one of each stage, of a ResNet."""
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    stages = []
    for stage in model.get_submodule("stages").children():
        last = [m for name, m in stage.named_modules() if name.endswith("conv3")][-1]
        assert isinstance(last, nn.Conv2d)
        stages.append(last.out_channels)
    return first.out_channels, stages


@pytest.mark.parametrize("config", configurations())
def test_a_built_network_has_the_sizes_that_its_configuration_states(
    config: ViTConfig | ResNetConfig,
) -> None:
    with torch.device("meta"):
        model = build_model(config)
        images = torch.empty(1, config.in_channels, *config.size)
        if isinstance(config, ResNetConfig):
            assert isinstance(model, ResNet)
            assert channels_of_parts(model) == (config.root_channels, config.stage_channels)
            return
        assert isinstance(model, VisionTransformer)
        tokens = model.features(images)
        pooled = model.pool(tokens)
        stem_map = images
        if model.patch_embed.backbone is not None:
            stem_map = model.patch_embed.backbone(images, False)
    assert tokens.shape[1] == config.num_tokens
    patches = model.patch_embed(images.to("meta"))
    assert patches.shape[-2] * patches.shape[-1] == config.num_patches
    learned = [t for t in (model.cls_token, model.dist_token, model.reg_token) if t is not None]
    assert sum(token.shape[1] for token in learned) == config.num_prefix_tokens
    assert (model.pos_embed is None) == (config.pos_embed == "none")
    if model.pos_embed is not None:
        assert model.pos_embed.shape[1] == config.num_positions
    assert config.num_positions == config.num_position_slots + config.num_patches
    assert stem_map.shape[1] == config.stem_channels
    assert pooled.shape[1] == config.pooled_width
    assert model.pre_logits(pooled).shape[1] == config.num_features
    assert len(model.head_layers) == 1 + config.distillation_token
    mlp: Any = model.blocks[0].get_submodule("mlp")
    halves = 2 if config.activation == "swiglu" else 1
    assert mlp.fc1.out_features == halves * mlp.fc2.in_features == config.mlp_hidden_width


@pytest.mark.parametrize("name", TIMM)
def test_derived_sizes_are_those_of_timms_network(name: str) -> None:
    timm = pytest.importorskip("timm")
    config = ZOO[name].config
    with torch.device("meta"):
        twin: Any = timm.create_model(TIMM[name])
    if isinstance(config, ResNetConfig):
        assert channels_of_parts(twin) == (config.root_channels, config.stage_channels)
        return
    assert twin.num_prefix_tokens == config.num_prefix_tokens
    assert twin.patch_embed.num_patches == config.num_patches
    assert twin.pos_embed.shape[1] == config.num_positions == config.num_tokens
    assert twin.patch_embed.proj.in_channels == config.stem_channels
    assert twin.blocks[0].mlp.fc1.out_features == config.mlp_hidden_width
    assert twin.num_features == config.pooled_width == config.num_features


@pytest.mark.parametrize(
    ("theirs", "changes"),
    [
        ("deit_base_distilled_patch16_224", {"distillation_token": True}),
        ("deit3_base_patch16_224", {"pos_embed_class_slot": False}),
        (
            "vit_giant_patch14_dinov2",
            {
                "image_size": 518,
                "patch_size": 14,
                "width": 1536,
                "depth": 40,
                "mlp_dim": 4096,
                "num_heads": 24,
                "activation": "swiglu",
            },
        ),
        (
            "vit_base_patch14_reg4_dinov2",
            {
                "image_size": 518,
                "patch_size": 14,
                "num_registers": 4,
                "pos_embed_class_slot": False,
            },
        ),
    ],
)
def test_tokens_slots_and_gates_are_those_of_timms_variants(
    theirs: str, changes: dict[str, Any]
) -> None:
    timm = pytest.importorskip("timm")
    config = model_config("vit_b16", **changes)
    assert isinstance(config, ViTConfig)
    with torch.device("meta"):
        twin = timm.create_model(theirs)
    assert twin.num_prefix_tokens == config.num_prefix_tokens
    assert twin.pos_embed.shape[1] == config.num_positions
    assert twin.blocks[0].mlp.fc1.out_features == config.mlp_hidden_width
    heads = [getattr(twin, n) for n in ("head", "head_dist") if hasattr(twin, n)]
    assert len(heads) == 1 + config.distillation_token
