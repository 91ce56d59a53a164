"""The derived sizes of a configuration, against networks that are built: ours, and timm's."""

from typing import Any

import pytest
import torch
from torch import nn

from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import ResNet
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import ZOO, build_model

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


def configurations() -> list[Any]:
    names = ("vit_ti16", "deit_ti16_distilled", "dinov2_s14_reg4", "dinov3_s16", "bit_r50x1")
    named = [pytest.param(ZOO[name].config, id=name) for name in names]
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
