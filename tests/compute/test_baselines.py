"""torchvision's classifiers by name, against torchvision's published figures."""

import pytest
import torchvision.models

from vit.compute.baselines import baseline_name, native_size
from vit.compute.candidate import candidate
from vit.errors import UserError


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("resnet50", torchvision.models.ResNet50_Weights.IMAGENET1K_V1),
        ("vit_b_16", torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1),
        ("efficientnet_b0", torchvision.models.EfficientNet_B0_Weights.IMAGENET1K_V1),
    ],
)
def test_counts_are_those_that_torchvision_publishes(name: str, weights) -> None:
    work = candidate(f"torchvision/{name}").work
    assert work.params == weights.meta["num_params"]
    assert work.macs / 1e9 == pytest.approx(weights.meta["_ops"], abs=6e-4)
    # Depthwise convolutions included: no more than three forward passes.
    assert 2.95 < work.training_macs / work.macs < 3


def test_efficientnet_l2_has_480_million_parameters() -> None:
    """Noisy Student, arXiv:1911.04252, Table 2."""
    import torch

    with torch.device("meta"):
        network = candidate("torchvision/EfficientNet_L2").build()
    assert round(sum(p.numel() for p in network.parameters()) / 1e6) == 480


def test_a_baseline_has_the_size_it_was_published_at() -> None:
    assert native_size("torchvision/resnet50") == (224, 224)
    assert native_size("torchvision/efficientnet_b7") == (600, 600)
    assert native_size("torchvision/efficientnet_l2") == (475, 475)


def test_another_size_and_head_are_built() -> None:
    model = candidate("torchvision/vit_b_32", (96, 96), 7)
    assert model.work.macs < candidate("vit_b32", (128, 128)).work.macs
    assert model.work.params == candidate("vit_b32", (96, 96), 7).work.params


@pytest.mark.parametrize("name", ["resnet5", "fasterrcnn_resnet50_fpn", "inception_v3"])
def test_what_is_no_classifier_with_one_output_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown model 'torchvision/"):
        baseline_name(f"torchvision/{name}")


def test_a_vit_of_torchvision_takes_squares_that_its_patches_divide() -> None:
    with pytest.raises(UserError, match="square images of a multiple of 14 pixels, not 224x210"):
        candidate("torchvision/vit_h_14", (224, 210)).build()
