"""The calls that users of timm know give what timm gives, with the same weights."""

import math
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.errors import UserError
from vit.extensions.formats.preprocessing import from_timm, to_timm
from vit.models.zoo import build_model

timm = pytest.importorskip("timm")

MODELS = {
    "vit_ti16": ("vit_tiny_patch16_224", {}),
    "deit": ("deit_tiny_distilled_patch16_224", {}),
    "gap": ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False}),
    "map": ("vit_tiny_patch16_224", {"global_pool": "map"}),
    "registers": ("vit_tiny_patch16_224", {"reg_tokens": 2, "no_embed_class": True}),
    "hybrid": ("vit_tiny_r_s16_p8_224", {}),
    "bit": ("resnetv2_50x1_bit", {}),
}


def pair(case: str, tmp_path: Path, num_classes: int = 5) -> tuple[Any, Any]:
    """timm's model with random weights, and ours that was read from it."""
    name, arguments = MODELS[case]
    make, sizes = timm.create_model, {"depth": 2, "img_size": 64}
    if case == "bit":
        make, sizes = timm.models.resnetv2._create_resnetv2_bit, {"width_factor": 1}
        sizes["layers"] = [1, 1, 1, 1]
    torch.manual_seed(0)
    theirs = make(name, num_classes=num_classes, **sizes, **arguments).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    return theirs, vit.create_model(pretrained=tmp_path / "timm.pth", report=lambda _: None).eval()


@pytest.mark.parametrize("case", MODELS)
def test_features_and_head_are_called_as_in_timm(case: str, tmp_path: Path) -> None:
    theirs, ours = pair(case, tmp_path)
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected, actual = theirs.forward_features(images), ours.forward_features(images)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        for pre_logits in (False, True):
            torch.testing.assert_close(
                ours.forward_head(actual, pre_logits=pre_logits).flatten(1),
                theirs.forward_head(expected, pre_logits=pre_logits).flatten(1),
                rtol=1e-4,
                atol=1e-4,
            )
        assert torch.equal(ours.forward_head(actual), ours(images))


@pytest.mark.parametrize("case", ["vit_ti16", "deit", "hybrid", "bit"])
def test_other_names_of_timm_give_what_they_give_there(case: str, tmp_path: Path) -> None:
    theirs, ours = pair(case, tmp_path)
    heads = [model.get_classifier() for model in (theirs, ours)]
    pairs = zip(*(head if isinstance(head, tuple) else (head,) for head in heads), strict=True)
    assert all(torch.equal(a.weight.flatten(1), b.weight.flatten(1)) for a, b in pairs)
    info = [{k: entry[k] for k in ("num_chs", "reduction")} for entry in theirs.feature_info]
    assert info == ours.feature_info
    names = getattr(theirs, "no_weight_decay", set)()
    assert ours.no_weight_decay() == {name for name in names if name in ours.state_dict()}
    ours.set_grad_checkpointing()
    assert ours.activation_checkpointing
    ours.reset_classifier(0)
    assert isinstance(ours.get_classifier(), torch.nn.Identity)


@pytest.mark.parametrize("case", ["vit_ti16", "registers", "deit", "gap", "hybrid", "bit"])
def test_intermediate_features_are_timms(case: str, tmp_path: Path) -> None:
    theirs, ours = (model.double() for model in pair(case, tmp_path))
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    calls: list[dict[str, Any]] = [
        {},
        {"indices": [-1, 0], "norm": True},
        {"indices": 1, "norm": True, "intermediates_only": True},
        {"indices": [0], "stop_early": True},
    ]
    if case != "bit":
        calls += [{"output_fmt": "NLC"}, {"return_prefix_tokens": True, "norm": True}]
    with torch.inference_mode():
        for call in calls:
            expected, actual = (m.forward_intermediates(images, **call) for m in (theirs, ours))
            torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(UserError, match=r"Output (format|shape) must be"):
        ours.forward_intermediates(images, output_fmt="NLC" if case == "bit" else "NHWC")
    with pytest.raises(UserError, match=r"layers=\[9\] is outside the \d layers"):
        ours.forward_intermediates(images, [9])


def test_maps_alone_are_another_call_and_one_side_is_a_size() -> None:
    with pytest.raises(UserError, match=r"intermediate_layers\(images"):
        vit.create_model("vit_ti16", features_only=True)
    model = vit.create_model("vit_ti16", image_size=32)
    assert vit.transforms(model, image_size=112).preprocess.image_size == (112, 112)


@pytest.mark.parametrize("case", ["deit", "map", "bit"])
@pytest.mark.parametrize("num_classes", [0, 7])
def test_a_classifier_can_be_reset(case: str, num_classes: int, tmp_path: Path) -> None:
    _, ours = pair(case, tmp_path)
    ours = ours.double().eval()
    images = torch.randn(1, 3, 64, 64, dtype=torch.float64)
    before = ours.forward_features(images)
    ours.reset_classifier(num_classes)
    assert torch.equal(before, ours.forward_features(images))
    logits = ours(images)
    if num_classes:
        assert torch.equal(logits, torch.zeros(1, 7, dtype=torch.float64))  # a zero head
    else:
        assert torch.equal(logits, ours.forward_head(before, pre_logits=True))
    assert all(not module.training for module in ours.modules())
    # What it says about itself is true: a model built from its configuration takes its weights.
    assert ours.config.num_classes == num_classes
    build_model(ours.config).load_state_dict(ours.state_dict())


def test_the_resized_side_is_timms_and_goes_back_to_timm() -> None:
    fractions = (0.875, 0.9, 0.95, 0.96, 0.965, 0.98, 1.0)
    for side, fraction in product((32, 96, 160, 224, 240, 256, 288, 384, 448, 518), fractions):
        statistics = {"mean": [0.5] * 3, "std": [0.5] * 3}
        ours = from_timm({"input_size": (3, side, side), "crop_pct": fraction, **statistics})
        assert ours is not None
        assert round(side / ours["crop_fraction"]) == math.floor(side / fraction)
        assert math.floor(side / to_timm(ours)["crop_pct"]) == math.floor(side / fraction)


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224.augreg_in21k_ft_in1k", "deit_tiny_patch16_224.fb_in1k"]
)
def test_transforms_are_timms_for_weights_that_record_them(name: str, tmp_path: Path) -> None:
    theirs = timm.create_model(name, num_classes=3, depth=1)
    timm.models.save_for_hf(theirs, tmp_path / "timm", safe_serialization=True)
    ours = vit.create_model(pretrained=tmp_path / "timm", report=lambda _: None)
    reference = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    transform = vit.transforms(ours)
    for size in ((300, 200), (224, 224), (97, 640)):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
        image = Image.fromarray(pixels)
        torch.testing.assert_close(transform(image), reference(image), rtol=0, atol=1e-6)
    image.save(tmp_path / "image.png")
    again = pickle.loads(pickle.dumps(transform))
    assert torch.equal(again(tmp_path / "image.png"), transform(pixels))


def test_transforms_of_fresh_weights_are_the_defaults_of_training() -> None:
    model = vit.create_model("vit_ti16", image_size=(64, 32), depth=1)
    black = vit.transforms(model)(np.zeros((80, 80), dtype=np.uint8))
    assert torch.equal(black, torch.full((3, 64, 32), -1.0))
    assert vit.transforms(model).preprocess.crop_fraction == 0.875
    assert vit.transforms(model, crop_fraction=1.0).preprocess.crop_fraction == 1.0


def test_transforms_of_weights_without_a_record_ask_for_mean_and_std(tmp_path: Path) -> None:
    _, ours = pair("vit_ti16", tmp_path)
    with pytest.raises(UserError, match="give mean and std"):
        vit.transforms(ours)
    given = vit.transforms(ours, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert torch.equal(given(np.full((9, 9), 255, dtype=np.uint8)), torch.ones(3, 64, 64))


def test_transforms_of_another_model_or_an_unknown_field_are_refused() -> None:
    with pytest.raises(UserError, match="not Linear"):
        vit.transforms(torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match="argument 'crop_pct'; it is an object with the fields"):
        vit.transforms(vit.create_model("vit_ti16", depth=1), crop_pct=0.9)
