"""Fresh weights have the distributions of the official code (vit_jax, big_vision)."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.small_models import SMALL
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import PostActBottleneck, PreActBottleneck, ResNet, StdConv2d
from vit.models.vision_transformer import VisionTransformer

WIDE: dict[str, Any] = {**SMALL, "width": 128, "mlp_dim": 256, "image_size": 64}


def fresh(**fields: Any) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(ViTConfig(**{**WIDE, **fields}))


def blocks_of(model: VisionTransformer) -> list[Any]:
    return list(model.blocks)


def assert_xavier(weight: Tensor) -> None:
    """Uniform in +-sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(6 / sum(weight.shape))
    assert 0.98 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)


def assert_truncated_lecun(weight: Tensor) -> None:
    """Deviation 1/sqrt(fan_in) after the cut at two deviations of the normal before it."""
    std = weight[0].numel() ** -0.5
    assert weight.std().item() == pytest.approx(std, rel=0.03)
    assert 1.9 * std / 0.8796 < weight.abs().max() <= 2 * std / 0.8796 * 1.0001


def test_dense_layers_are_xavier_of_each_matrix_and_their_biases_zero_but_the_mlps() -> None:
    for block in blocks_of(fresh()):
        for matrix in block.attn.qkv.weight.chunk(3):
            assert matrix.shape == (128, 128)
            assert_xavier(matrix)
        for layer in (block.attn.proj, block.mlp.fc1, block.mlp.fc2):
            assert_xavier(layer.weight)
        assert not block.attn.qkv.bias.any() and not block.attn.proj.bias.any()
        for layer in (block.mlp.fc1, block.mlp.fc2):
            assert layer.bias.std().item() == pytest.approx(1e-6, rel=0.25)


def test_patches_and_tanh_layer_are_truncated_lecun() -> None:
    model = fresh(representation_size=96)
    fc = model.pre_logits.get_submodule("fc")
    for layer in (model.patch_embed.proj, fc):
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        assert_truncated_lecun(layer.weight)
        assert layer.bias is not None and not layer.bias.any()


def test_tokens_and_positions_start_as_published() -> None:
    model = fresh(num_registers=64, distillation_token=True)
    for token, std in (
        (model.pos_embed, 0.02),  # vit_jax
        (model.dist_token, 0.02),  # DeiT
        (model.reg_token, 1e-6),  # DINOv2
    ):
        assert token is not None
        assert token.std().item() == pytest.approx(std, rel=0.15)
    assert model.cls_token is not None and not model.cls_token.any()


def test_heads_start_at_zero_norms_at_one_and_layer_scale_at_its_value() -> None:
    model = fresh(distillation_token=True, layer_scale=0.1)
    assert len(model.head_layers) == 2
    for head in model.head_layers:
        assert not head.weight.any() and not head.bias.any()
    for block in blocks_of(model):
        assert block.ls1.gamma.eq(0.1).all() and block.ls2.gamma.eq(0.1).all()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all() and not module.bias.any()


def test_attention_pooling_starts_as_big_visions() -> None:
    pool = fresh(pool="map").attn_pool
    assert pool is not None
    bound = math.sqrt(6 / (1 + 128))
    assert 0.9 * bound < pool.latent.abs().max() <= bound
    for matrix in (pool.q.weight, *pool.kv.weight.chunk(2), pool.proj.weight, pool.mlp.fc1.weight):
        assert_xavier(matrix)
    assert not pool.kv.bias.any()


def test_convolutions_are_truncated_lecun_and_only_hybrids_start_as_identities() -> None:
    torch.manual_seed(0)
    resnet = ResNet(ResNetConfig(depths=(1, 1), num_classes=5))
    hybrid = fresh(stem_depths=(1, 1), patch_size=8)
    for model, block in ((resnet, PreActBottleneck), (hybrid, PostActBottleneck)):
        convolutions = [m for m in model.modules() if isinstance(m, StdConv2d)]
        blocks = [m for m in model.modules() if isinstance(m, block)]
        assert len(convolutions) == 9 and len(blocks) == 2
        for convolution in convolutions:
            assert_truncated_lecun(convolution.weight)
        for norm in [b.norm3 for b in blocks]:
            assert norm.weight.eq(0 if model is hybrid else 1).all()
    [head] = resnet.head_layers
    assert isinstance(head, nn.Conv2d) and head.bias is not None
    assert not head.weight.any() and not head.bias.any()
