"""The model against the paper's equations, timm and torchvision, all in float64."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.small_models import (
    SMALL,
    filled,
    random_images,
    relative_error,
    small_bit,
    small_hybrid,
    small_vit,
)
from vit.errors import UserError
from vit.models.config import ViTConfig
from vit.models.encoder import DropPath
from vit.models.vision_transformer import VisionTransformer

EXACT = 1e-12


def timm_twin(model: VisionTransformer, **arguments: Any) -> Any:
    """timm's model of the same shape, with the same weights under the same names."""
    timm_vit = pytest.importorskip("timm.models.vision_transformer")
    deit = pytest.importorskip("timm.models.deit")
    config = model.config
    kind = timm_vit.VisionTransformer
    if config.distillation_token:
        kind = deit.VisionTransformerDistilled
    act = {"swiglu": "silu"}.get(config.activation, config.activation)
    settings = {
        "img_size": config.size,
        "patch_size": config.patch_size,
        "num_classes": config.num_classes,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": config.mlp_dim / config.width,
        "act_layer": act,
        **arguments,
    }
    twin = kind(**settings).double().eval()
    twin.load_state_dict(model.state_dict())
    return twin


TIMM_VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": ({}, {}),
    "erf": ({"activation": "gelu"}, {}),
    "clip": ({"activation": "quick_gelu", "pre_norm": True}, {"pre_norm": True}),
    "non_square": ({"image_size": (24, 48)}, {}),
    "gray": ({"in_channels": 1}, {"in_chans": 1}),
    "layer_scale": ({"layer_scale": 0.1}, {"init_values": 0.1}),
    "epsilon": ({"layer_norm_eps": 0.1}, {"norm_layer": partial(nn.LayerNorm, eps=0.1)}),
    "gap": ({"pool": "gap"}, {"global_pool": "avg", "fc_norm": False}),
    "norm_after_gap": ({"pool": "gap", "norm_after_pool": True}, {"global_pool": "avg"}),
    "norm_after_cls": ({"norm_after_pool": True}, {"fc_norm": True}),
    "no_class_token": (
        {"pool": "gap", "class_token": False},
        {"global_pool": "avg", "fc_norm": False, "class_token": False},
    ),
    "map": (
        {"pool": "map", "class_token": False},
        {"global_pool": "map", "class_token": False},
    ),
    "map_beside_class_token": ({"pool": "map"}, {"global_pool": "map"}),
    "no_class_slot": ({"pos_embed_class_slot": False}, {"no_embed_class": True}),
    "registers": (
        {"num_registers": 3, "pos_embed_class_slot": False},
        {"reg_tokens": 3, "no_embed_class": True},
    ),
    "registers_alone": (
        {"num_registers": 2, "class_token": False, "pool": "gap"},
        {
            "reg_tokens": 2,
            "class_token": False,
            "no_embed_class": True,
            "global_pool": "avg",
            "fc_norm": False,
        },
    ),
    "no_positions": ({"pos_embed": "none"}, {"pos_embed": "none"}),
    "distilled": ({"distillation_token": True}, {}),
    "backbone": ({"num_classes": 0}, {}),
    "distilled_backbone": ({"distillation_token": True, "num_classes": 0}, {}),
}


@pytest.mark.parametrize("variant", TIMM_VARIANTS)
def test_logits_equal_timms(variant: str) -> None:
    fields, arguments = TIMM_VARIANTS[variant]
    model = small_vit(**fields).double()
    twin = timm_twin(model, **arguments)
    images = random_images(2, model.config.in_channels, *model.config.size, dtype=torch.float64)
    tokens = twin.forward_features(images)
    pooled = twin.forward_head(tokens, pre_logits=True)
    assert relative_error(model.features(images), tokens) < EXACT
    assert tokens.shape[1] == model.config.num_tokens
    assert relative_error(model.pool(tokens), pooled) < EXACT
    expected = twin(images) if model.config.num_classes else pooled
    assert relative_error(model(images), expected) < EXACT


def test_swiglu_equals_timms() -> None:
    layers = pytest.importorskip("timm.layers")
    model = small_vit(activation="swiglu", mlp_dim=48).double()
    # timm counts gate and value together: 96 = 3 * 32.
    twin = timm_twin(model, mlp_layer=layers.SwiGLUPacked, mlp_ratio=3.0)
    images = random_images(2, 3, 32, 32, dtype=torch.float64)
    assert relative_error(model(images), twin(images)) < EXACT


@pytest.mark.parametrize(("depths", "patch_size"), [((), 8), ((1, 1, 2), 32), ((1, 1, 1, 1), 32)])
def test_hybrid_logits_equal_timms(depths: tuple[int, ...], patch_size: int) -> None:
    hybrid = pytest.importorskip("timm.models.vision_transformer_hybrid")
    size = (96, 64)
    model = small_hybrid(
        stem_depths=depths, patch_size=patch_size, image_size=size, ws_mode="timm", depth=2
    ).double()
    embed = partial(hybrid.HybridEmbed, backbone=hybrid._resnetv2(depths))
    side = patch_size // model.config.stem_stride
    twin = timm_twin(model, embed_layer=embed, patch_size=side, img_size=size)
    images = random_images(2, 3, *size, dtype=torch.float64)
    assert relative_error(model(images), twin(images)) < EXACT


@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("size", [(48, 40), (16, 64)])
def test_another_size_resamples_the_patch_positions_only(
    slots: bool, size: tuple[int, int]
) -> None:
    fields = {"pos_embed_class_slot": slots, "pos_resize": "bicubic"}
    model = small_vit(**fields).double()
    state = model.state_dict()
    prefix, patches = state["pos_embed"].split([int(slots), 16], dim=1)
    grid = patches.reshape(1, 4, 4, 32).permute(0, 3, 1, 2)
    new = (size[0] // 8, size[1] // 8)
    resized = F.interpolate(grid, size=new, mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    other = small_vit(**fields, image_size=size).double()
    other.load_state_dict({**state, "pos_embed": torch.cat([prefix, resized], dim=1)})
    twin = timm_twin(other, no_embed_class=not slots)
    images = random_images(2, 3, *size, dtype=torch.float64)
    assert relative_error(model(images), twin(images)) < EXACT


def test_a_size_that_does_not_divide_is_refused() -> None:
    for height, width in ((36, 32), (32, 36)):
        with pytest.raises(UserError, match=f"{height}x{width} pixels"):
            small_vit()(random_images(1, 3, height, width))


def test_distilled_training_sees_each_head() -> None:
    model = small_vit(distillation_token=True).double()
    images = random_images(2, 3, 32, 32, dtype=torch.float64)
    logits, distilled = model.forward_distilled(images)
    twin = timm_twin(model)
    twin.train()
    twin.distilled_training = True
    expected, expected_distilled = twin(images)
    assert relative_error(logits, expected) < EXACT
    assert relative_error(distilled, expected_distilled) < EXACT
    assert len(model.head_layers) == 2


def test_backbone_gives_what_the_head_would_receive() -> None:
    for fields in ({}, {"pool": "gap"}, {"pool": "map"}, {"representation_size": 20}):
        model = small_vit(**fields)
        backbone = VisionTransformer(ViTConfig(**{**SMALL, **fields, "num_classes": 0}))
        state = {k: v for k, v in model.state_dict().items() if not k.startswith("head.")}
        backbone.eval().load_state_dict(state)
        images = random_images(2, 3, 32, 32)
        assert backbone(images).shape == (2, backbone.num_features)
        assert torch.equal(model.head(backbone(images)), model(images))
        assert backbone.head_layers == []


def test_sincos_positions_need_no_weights_and_survive_a_meta_build() -> None:
    model = small_vit(pos_embed="sincos2d")
    assert not any("pos" in name for name in model.state_dict())
    with torch.device("meta"):
        other = VisionTransformer(model.config)
    other.load_state_dict(model.state_dict(), assign=True)
    images = random_images(1, 3, 32, 32)
    assert torch.equal(other.eval()(images), model(images))


VARIANTS = [
    {"representation_size": 20, "layer_scale": 0.1},
    {"distillation_token": True, "num_registers": 2},
    {"pool": "map", "class_token": False, "norm_after_pool": False},
    {"pool": "gap", "class_token": False, "norm_after_pool": True, "activation": "swiglu"},
    {"pool": "cls_gap", "pos_embed": "sincos2d"},
    {"stem_depths": (1, 2), "patch_size": 8, "num_registers": 1},
    {"stem_depths": (), "patch_size": 8},
    {"pre_norm": True, "activation": "quick_gelu"},
]


@pytest.mark.parametrize("fields", [*VARIANTS, None])
def test_every_parameter_gets_a_gradient(fields: dict[str, Any] | None) -> None:
    model = (small_bit() if fields is None else small_vit(**fields)).train()
    model(random_images(2, 3, 32, 32)).square().sum().backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


@pytest.mark.parametrize("uniform", [False, True])
def test_drop_path_grows_linearly_or_is_uniform(uniform: bool) -> None:
    fields = {"depth": 5, "drop_path": 0.4, "drop_path_uniform": uniform}
    model = VisionTransformer(ViTConfig(**{**SMALL, **fields}))
    rates = [getattr(block.drop_path1, "rate", 0.0) for block in model.blocks]
    expected = [0.4] * 5 if uniform else [0.0, 0.1, 0.2, 0.3, 0.4]
    assert rates == pytest.approx(expected)
    assert rates == [getattr(block.drop_path2, "rate", 0.0) for block in model.blocks]


def test_dropout_sits_where_the_paper_puts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Appendix B.1: after every dense layer except qkv, and after adding positions.
    model = filled(VisionTransformer(ViTConfig(**SMALL, dropout=0.25))).train()
    seen: list[tuple[int, ...]] = []
    dropout = F.dropout

    def recorded(x: Tensor, p: float, *rest: Any) -> Tensor:
        assert p == 0.25
        seen.append(tuple(x.shape))
        return dropout(x, p, *rest)

    monkeypatch.setattr(F, "dropout", recorded)
    first = model(random_images(2, 3, 32, 32))
    layer = [(2, 17, 32), (2, 17, 64), (2, 17, 32)]  # attention output, both layers of the MLP
    assert seen == [(2, 17, 32), *layer * 3]
    assert not torch.equal(first, model(random_images(2, 3, 32, 32)))
    assert torch.equal(*(model.eval()(random_images(2, 3, 32, 32)) for _ in range(2)))


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer, n = DropPath(0.3), 20_000
    out = layer(torch.ones(n, 2, 3))
    first = out[:, :1, :1]
    assert torch.equal(out, first.expand_as(out))  # one draw per image
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7])
    deviation = (0.7 * 0.3 / n) ** 0.5
    assert abs((first > 0).double().mean() - 0.7) < 4 * deviation
