"""Every model name, its parameter count, and its other spellings."""

import re
from typing import Any

import pytest
import torch

from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import ZOO, build_model, canonical_name, list_models, model_config

# Counts of Google's own code with 1000 classes; the others come from timm.
PUBLISHED = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
    "vit_b16": 102_595_923 - 20_843 * 769,  # published with 21,843 classes
    "r_vit_ti16": 6_337_704,
    "r26_vit_s32": 36_431_912,
    "r50_vit_l32": 328_994_856,
    "r50_vit_b16": 114_687_379 - 20_843 * 769,
}

TIMM = {
    "vit_s32": "vit_small_patch32_224",
    "vit_giant14": "vit_giant_patch14_224",
    "vit_gigantic14": "vit_gigantic_patch14_224",
    "bit_r50x1": "resnetv2_50x1_bit",
    "bit_r50x3": "resnetv2_50x3_bit",
    "bit_r101x1": "resnetv2_101x1_bit",
    "bit_r101x3": "resnetv2_101x3_bit",
    "bit_r152x2": "resnetv2_152x2_bit",
    "bit_r152x4": "resnetv2_152x4_bit",
    "deit_ti16": "deit_tiny_patch16_224",
    "deit_s16": "deit_small_patch16_224",
    "deit_b16": "deit_base_patch16_224",
    "deit_ti16_distilled": "deit_tiny_distilled_patch16_224",
    "deit_s16_distilled": "deit_small_distilled_patch16_224",
    "deit_b16_distilled": "deit_base_distilled_patch16_224",
    "deit3_s16": "deit3_small_patch16_224",
    "deit3_b16": "deit3_base_patch16_224",
    "deit3_l16": "deit3_large_patch16_224",
    "deit3_h14": "deit3_huge_patch14_224",
    "dinov2_s14": "vit_small_patch14_dinov2",
    "dinov2_b14": "vit_base_patch14_dinov2",
    "dinov2_l14": "vit_large_patch14_dinov2",
    "dinov2_g14": "vit_giant_patch14_dinov2",
}
# timm adds the class token's position to the token; DINOv2's own files, and so ours, keep it.
WITHOUT_CLASS_SLOT = {
    f"{name}_reg4": twin.replace("_dinov2", "_reg4_dinov2")
    for name, twin in TIMM.items()
    if name.startswith("dinov2")
}
# Queries, keys and values have no biases there.
WITHOUT_BIASES = {
    "dinov3_s16": "vit_small_patch16_dinov3",
    "dinov3_s16_plus": "vit_small_plus_patch16_dinov3",
    "dinov3_b16": "vit_base_patch16_dinov3",
    "dinov3_l16": "vit_large_patch16_dinov3",
    "dinov3_h16_plus": "vit_huge_plus_patch16_dinov3",
}


def meta_count(name: str) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(ZOO[name].config).parameters())


@pytest.mark.parametrize("name", ZOO)
def test_every_entry_has_its_published_count_and_a_source(name: str) -> None:
    entry = ZOO[name]
    assert meta_count(name) == entry.num_params
    assert entry.num_params == PUBLISHED.get(name, entry.num_params)
    assert re.match(r"arXiv:\d{4}\.\d{5}, ", entry.source)


@pytest.mark.parametrize(("name", "millions"), [("vit_giant14", 1011), ("vit_gigantic14", 1843)])
def test_the_giants_have_the_counts_of_their_paper(name: str, millions: int) -> None:
    """arXiv:2106.04560, Table 2, in millions and without a head."""
    config = model_config(name, num_classes=0)
    with torch.device("meta"):
        count = sum(p.numel() for p in build_model(config).parameters())
    assert round(count / 1e6) == millions


@pytest.mark.parametrize(("name", "twin"), (TIMM | WITHOUT_CLASS_SLOT | WITHOUT_BIASES).items())
def test_count_equals_timms(name: str, twin: str) -> None:
    timm = pytest.importorskip("timm")
    size = {"img_size": 224} if name.startswith("dinov2") else {}
    with torch.device("meta"):
        model = timm.create_model(twin, num_classes=1000, **size)
    config: Any = ZOO[name].config
    missing = config.width if name in WITHOUT_CLASS_SLOT else 0
    missing += 3 * config.width * config.depth if name in WITHOUT_BIASES else 0
    assert sum(p.numel() for p in model.parameters()) + missing == ZOO[name].num_params


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ViT-B/16", "vit_b16"),
        ("vit_b_16", "vit_b16"),
        ("ViT-giant/14", "vit_giant14"),
        ("R50+ViT-B/16", "r50_vit_b16"),
        ("R50x1+ViT-L/32", "r50_vit_l32"),
        ("R+ViT-Ti/16", "r_vit_ti16"),
        ("BiT-R50x1", "bit_r50x1"),
        ("ResNet152x2", "bit_r152x2"),
    ],
)
def test_the_papers_spellings_are_known(spelling: str, name: str) -> None:
    assert canonical_name(spelling) == name


def test_every_name_is_its_own_spelling() -> None:
    assert [canonical_name(name) for name in ZOO] == list_models() == list(ZOO)
    assert list_models("vit_b*") == ["vit_b16", "vit_b32"]
    assert len(list_models("r*vit*")) == 6


def test_an_unknown_name_lists_the_nearest_or_some() -> None:
    with pytest.raises(UserError, match=r"unknown model 'vit_b17'; did you mean .*'vit_b16'"):
        canonical_name("vit_b17")
    with pytest.raises(
        UserError, match=r"'inception'; known: vit_ti16, .* more \(`vit models` lists them"
    ):
        canonical_name("inception")


def test_overrides_replace_fields() -> None:
    config = model_config("ViT-B/16", num_classes=10, image_size=384)
    assert isinstance(config, ViTConfig)
    assert (config.num_classes, config.grid, config.width) == (10, (24, 24), 768)
    resnet = model_config("bit_r50x1", num_classes=10)
    assert isinstance(resnet, ResNetConfig) and resnet.num_classes == 10
    with pytest.raises(UserError, match="unknown model option 'widht'; did you mean 'width'"):
        model_config("vit_b16", widht=3)
    with pytest.raises(UserError, match="unknown model option 'pool'"):
        model_config("bit_r50x1", pool="gap")
