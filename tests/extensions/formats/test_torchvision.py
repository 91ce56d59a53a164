"""torchvision's ViTs give torchvision's logits here."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.extensions.formats.checkpoint_peers import assert_same, outputs
from tests.models.small_models import filled
from vit.weights.pretrained import inspect_pretrained, load_pretrained

peers = pytest.importorskip("torchvision.models.vision_transformer")


def peer(image_size: int = 32, **options: int) -> nn.Module:
    sizes = {"patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 96}
    sizes |= {"image_size": image_size, "num_classes": 5} | options
    return filled(peers.VisionTransformer(**sizes, norm_layer=partial(nn.LayerNorm, eps=1e-6)))


@pytest.mark.parametrize("representation_size", [None, 48])
@pytest.mark.parametrize("old_names", [False, True])
def test_logits_equal_torchvision(
    representation_size: int | None, old_names: bool, tmp_path: Path
) -> None:
    model = peer(representation_size=representation_size)  # pyright: ignore
    state = model.state_dict()
    if old_names:  # as saved before torchvision 0.13
        state = {
            k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
            for k, v in state.items()
        }
    torch.save(state, tmp_path / "w.pth")
    ours, report = load_pretrained(tmp_path / "w.pth", num_heads=4)
    assert report.loaded == len(state)
    assert_same(outputs(ours.double().eval(), (32, 32)), outputs(model.double(), (32, 32)))


def test_positions_resize_as_torchvision_resizes_them(tmp_path: Path) -> None:
    """Its own function for this works on state dicts, and only for squares."""
    model = peer()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    larger = peer(image_size=48)
    state = peers.interpolate_embeddings(48, 8, dict(model.state_dict()))
    larger.load_state_dict(state)
    ours, report = load_pretrained(tmp_path / "w.pth", num_heads=4, image_size=48)
    assert report.resized == ["positions from 4x4 to 6x6 patches (bicubic_corners)"]
    assert_same(outputs(ours.double().eval(), (48, 48)), outputs(larger.double(), (48, 48)), 1e-6)
    at_forward, _ = load_pretrained(tmp_path / "w.pth", num_heads=4)
    assert_same(
        outputs(at_forward.double().eval(), (48, 48)), outputs(larger.double(), (48, 48)), 1e-6
    )


def test_swag_sizes_get_swag_preprocessing(tmp_path: Path) -> None:
    for size, fraction, filter_ in ((224, 0.875, "bilinear"), (384, 1.0, "bicubic")):
        torch.save(peer(image_size=size).state_dict(), tmp_path / "w.pth")
        found = inspect_pretrained(tmp_path / "w.pth", num_heads=4).preprocess
        assert found is not None
        assert found["image_size"] == [size, size]
        assert (found["crop_fraction"], found["interpolation"]) == (fraction, filter_)
    large = peer(image_size=224, patch_size=16, hidden_dim=1024, num_heads=16)
    torch.save(large.state_dict(), tmp_path / "l16.pth")
    of_large = inspect_pretrained(tmp_path / "l16.pth").preprocess
    weights = peers.ViT_L_16_Weights.IMAGENET1K_V1.transforms()
    assert of_large and round(224 / of_large["crop_fraction"]) == weights.resize_size[0] == 242
    assert "does not say how images are prepared" in "".join(
        load_pretrained(tmp_path / "w.pth", num_heads=4)[1].notes
    )
