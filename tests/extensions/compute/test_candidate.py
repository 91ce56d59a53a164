"""Models that are compared, by name or by shape; torchvision's against its published figures."""

import pytest
import torchvision.models

from vit.errors import UserError
from vit.extensions.compute.candidate import baseline_name, describe, find_model, native_size
from vit.models.zoo import model_config


def test_architectures_are_described_by_name_or_shape() -> None:
    assert describe(model_config("vit_l16", image_size=384, num_classes=3)) == "vit_l16"
    assert describe(model_config("r26_vit_s32")) == "r26_vit_s32"
    tiny = model_config("vit_ti16", patch_size=8, width=16, depth=1, mlp_dim=32, num_heads=1)
    assert describe(tiny) == "vit 16x1 /8"
    assert describe(model_config("bit_r50x1", depths=(1, 2))) == "bit 1-2 x1"


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("resnet50", torchvision.models.ResNet50_Weights.IMAGENET1K_V1),
        ("vit_b_16", torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("efficientnet_b0", torchvision.models.EfficientNet_B0_Weights.IMAGENET1K_V1),
    ],
)
def test_counts_are_those_that_torchvision_publishes(name: str, weights) -> None:
    work = find_model(f"torchvision/{name}").work
    assert work.params == weights.meta["num_params"]
    assert work.flops / 2e9 == pytest.approx(weights.meta["_ops"], abs=6e-4)
    # Depthwise convolutions included: no more than three forward passes.
    assert 2.95 < work.training_flops / work.flops < 3


def test_a_baseline_has_the_size_it_was_published_at() -> None:
    assert native_size("torchvision/resnet50") == (224, 224)
    assert native_size("torchvision/efficientnet_b7") == (600, 600)


def test_another_size_and_head_are_built() -> None:
    model = find_model("torchvision/vit_b_32", (96, 96), 7)
    assert model.work.params == find_model("vit_b32", (96, 96), 7).work.params


@pytest.mark.parametrize("name", ["resnet5", "fasterrcnn_resnet50_fpn", "inception_v3"])
def test_what_is_no_classifier_with_one_output_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown model 'torchvision/"):
        baseline_name(f"torchvision/{name}")


def test_a_vit_of_torchvision_takes_squares_that_its_patches_divide() -> None:
    with pytest.raises(UserError, match="square images of a multiple of 14 pixels, not 224x210"):
        find_model("torchvision/vit_h_14", (224, 210)).build()
