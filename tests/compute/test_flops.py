"""Closed formulas against PyTorch's counter, torchvision's figures and parameter counts."""

from functools import cache

import pytest
import torch
import torch.nn.functional as F
import torchvision.models

from tests.compute.conftest import shallow_candidate
from vit.compute.candidate import candidate
from vit.compute.flops import Work, counted, work
from vit.models.zoo import ZOO, ModelConfig, build_model, model_config

FOURTEENS = ((224, 224), (112, 70))
SIZES = {"bit": ((224, 224), (75, 50)), "r50": ((96, 64),)}
SIZES |= {
    name: FOURTEENS for name, entry in ZOO.items() if getattr(entry.config, "patch_size", 0) == 14
}
"""By name or its first part; 224 and 96x64 pixels otherwise."""
VARIANTS = [
    {"pool": "map"},
    {"pool": "gap", "class_token": False, "pos_embed": "sincos2d"},
    {"pool": "cls_gap", "num_registers": 4},
    {"distillation_token": True, "pos_embed_class_slot": False},
    {"activation": "swiglu", "layer_scale": 1e-4, "norm_after_pool": True},
    {"representation_size": 100, "in_channels": 1, "num_classes": 7},
    {"num_classes": 0, "pos_embed": "none"},
    {"rotary": {"coordinates": "index", "pairing": "neighbours", "learned": True}},
]


@cache
def counted_once(config: ModelConfig) -> Work:
    """PyTorch's count; shallow R50, R101 and R152 of one width are equal."""
    return counted(build_on_meta(config), config.size)


def build_on_meta(config: ModelConfig) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(config)


def agreeing(work: Work) -> tuple[int, int, int]:
    """The fields that formula and counter share."""
    return work.params, work.macs, work.training_macs


@pytest.mark.parametrize("name", ZOO)
def test_parameters_are_the_published_ones(name: str) -> None:
    assert work(model_config(name)).params == ZOO[name].num_params


@pytest.mark.parametrize("name", ZOO)
def test_the_formula_agrees_with_pytorchs_counter(name: str) -> None:
    for size in SIZES.get(name, SIZES.get(name.split("_")[0], ((224, 224), (96, 64)))):
        model = shallow_candidate(name, size)
        assert agreeing(counted_once(model.config)) == agreeing(model.work)


@pytest.mark.parametrize("changes", VARIANTS, ids=lambda changes: next(iter(changes)))
def test_every_option_of_a_vit_is_counted(changes: dict) -> None:
    model = shallow_candidate("vit_ti16", (64, 96), **changes)
    assert agreeing(model.counted) == agreeing(model.work)


def test_full_depth_agrees() -> None:
    model = candidate("r50_vit_b16")
    assert agreeing(model.counted) == agreeing(model.work)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("vit_b16", torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("vit_b32", torchvision.models.ViT_B_32_Weights.IMAGENET1K_V1),
        ("vit_l16", torchvision.models.ViT_L_16_Weights.IMAGENET1K_V1),
        ("vit_l32", torchvision.models.ViT_L_32_Weights.IMAGENET1K_V1),
        # torchvision's ResNet-50 has the convolutions of BiT's.
        ("bit_r50x1", torchvision.models.ResNet50_Weights.IMAGENET1K_V1),
    ],
)
def test_multiply_adds_are_those_that_torchvision_publishes(name: str, weights) -> None:
    assert work(model_config(name)).macs / 1e9 == pytest.approx(weights.meta["_ops"], abs=6e-4)


def test_a_training_step_is_three_forwards_less_the_gradient_of_the_pixels() -> None:
    found = work(model_config("vit_b16"))
    patches = 14 * 14 * (16 * 16 * 3) * 768
    assert found.training_macs == 3 * found.macs - patches
    assert (found.flops, found.training_flops) == (2 * found.macs, 2 * found.training_macs)


def test_a_probe_trains_its_head_alone() -> None:
    found = work(model_config("vit_b16", num_classes=10))
    assert found.probe_macs == found.macs + 768 * 10


def test_attention_counts_the_same_by_any_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def explicit(q, k, v):
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v

    found = []
    for operator in (F.scaled_dot_product_attention, explicit):
        monkeypatch.setattr(F, "scaled_dot_product_attention", operator)
        found.append(shallow_candidate("vit_ti16", (64, 64)).counted)
    assert found[0] == found[1]


def test_padding_is_found_as_a_loop_finds_it() -> None:
    """A map of zeros and ones, summed by a kernel of ones, counts the pixels that it covers."""
    config = model_config("bit_r50x1", image_size=(37, 50), depths=(1, 1))
    inside = 0
    for c, d, kernel, stride, size in (
        (3, 64, 7, 2, (37, 50)),
        (64, 256, 1, 1, (10, 13)), (64, 64, 1, 1, (10, 13)),
        (64, 64, 3, 1, (10, 13)), (64, 256, 1, 1, (10, 13)),
        (256, 512, 1, 2, (10, 13)), (256, 128, 1, 1, (10, 13)),
        (128, 128, 3, 2, (10, 13)), (128, 512, 1, 1, (5, 7)),
    ):  # fmt: skip
        ones = torch.ones(1, 1, *size), torch.ones(1, 1, kernel, kernel)
        met = int(F.conv2d(*ones, stride=stride, padding=kernel // 2).sum())
        inside += c * d * met * (2 if kernel == 7 else 3)
    assert work(config).training_macs_inside == inside + 3 * 512 * 1000


def test_grouped_convolutions_cost_as_much_backward_as_forward_twice() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Flatten()
    )
    found = counted(model, (10, 10))
    first, depthwise = 8 * 8 * 27 * 8, 6 * 6 * 9 * 8
    assert found.macs == first + depthwise
    assert found.training_macs == 2 * first + 3 * depthwise


def test_another_size_and_head_change_the_count() -> None:
    small, large = (candidate("vit_s16", (s, s), 10).work for s in (224, 384))
    assert large.macs > 3 * small.macs
    assert candidate("vit_s16", None, 10).work.macs == candidate("vit_s16").work.macs - 384 * 990
