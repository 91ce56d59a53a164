"""Counted operations against closed formulas, torchvision's figures and hand counts."""

import pytest
import torch
import torch.nn.functional as F
import torchvision.models

from tests.extensions.compute.conftest import shallow_candidate
from tests.extensions.compute.formulas import multiply_adds
from vit.extensions.compute.candidate import find_model, head_alone
from vit.extensions.compute.flops import Work, counted
from vit.models.zoo import ZOO, ModelConfig

VARIANTS = [
    {"pool": "gap", "class_token": False, "pos_embed": "sincos2d"},
    {"num_registers": 4},
    {"distillation_token": True, "pos_embed_class_slot": False},
    {"activation": "swiglu", "layer_scale": 1e-4, "norm_after_pool": True},
    {"in_channels": 1, "num_classes": 7},
    {"num_classes": 0, "pos_embed": "none"},
]


SIZES = {"image_size", "width", "depth", "mlp_dim", "num_heads", "num_classes", "depths"}


def kind(config: ModelConfig) -> str:
    """What models that differ in their sizes alone have in common."""
    return str({k: v for k, v in config.to_dict().items() if k not in SIZES})


KINDS = {kind(model.config): name for name, model in ZOO.items()}.values()


def by_formula(config: ModelConfig) -> tuple[int, int]:
    """Operations of the forward pass, and of a training step."""
    macs, pixels = multiply_adds(config)
    return 2 * macs, 2 * (3 * macs - pixels)


def operations(work: Work) -> tuple[int, int]:
    return work.flops, work.training_flops


@pytest.mark.parametrize(
    ("name", "changes"), [*((name, {}) for name in KINDS), *(("vit_ti16", c) for c in VARIANTS)]
)
def test_models_and_options_cost_what_the_formulas_say(name: str, changes: dict) -> None:
    size = (224, 448) if getattr(ZOO[name].config, "patch_size", 0) == 14 else (64, 96)
    model = shallow_candidate(name, size, **changes)
    assert model.config is not None
    assert operations(model.work) == by_formula(model.config)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("vit_b16", torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("vit_l32", torchvision.models.ViT_L_32_Weights.IMAGENET1K_V1),
        # torchvision's ResNet-50 has the convolutions of BiT's.
        ("bit_r50x1", torchvision.models.ResNet50_Weights.IMAGENET1K_V1),
        ("torchvision/vit_b_16", torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("torchvision/efficientnet_b0", torchvision.models.EfficientNet_B0_Weights.IMAGENET1K_V1),
    ],
)
def test_multiply_adds_are_those_that_torchvision_publishes(name: str, weights) -> None:
    work = find_model(name).work
    assert work.flops / 2e9 == pytest.approx(weights.meta["_ops"], abs=6e-4)
    # Depthwise convolutions included: no more than three forward passes.
    assert 2.95 < work.training_flops / work.flops < 3


def test_a_probe_trains_its_head_alone() -> None:
    model = find_model("vit_ti16", None, 10)
    probe = model.adapted(head_alone)
    assert probe.flops == model.work.flops
    assert probe.training_flops == model.work.flops + 2 * 192 * 10


def test_attention_counts_the_same_by_any_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def explicit(q, k, v):
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v

    counts = []
    for operator in (F.scaled_dot_product_attention, explicit):
        monkeypatch.setattr(F, "scaled_dot_product_attention", operator)
        counts.append(counted(shallow_candidate("vit_ti16").build(), (64, 64)))
    assert counts[0] == counts[1]


def test_grouped_convolutions_cost_as_much_backward_as_forward_twice() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Flatten()
    )
    first, depthwise = 8 * 8 * 27 * 8, 6 * 6 * 9 * 8
    expected = 2 * (first + depthwise), 2 * (2 * first + 3 * depthwise)
    assert operations(counted(model, (10, 10))) == expected
