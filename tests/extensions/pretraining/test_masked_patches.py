"""The module that pre-trains on masked patches: what it learns from, and what it leaves behind."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.extensions.pretraining.conftest import ARCHITECTURES, PREFIX, SIZES, Make
from tests.grouped import image_classifier
from vit.extensions.pretraining.masked_patches import MaskedPatchPrediction
from vit.extensions.pretraining.masking import (
    Corruption,
    color_classes,
    patch_pixels,
    to_bytes,
)
from vit.preprocessing import Preprocess
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.schedules import Schedule
from vit.weights.native import save_native

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def make(make_task: Make) -> Make:
    return partial(make_task, "masked_patches")


def fixed(chosen: list[int], source: list[int], masked: list[bool], images: int) -> Corruption:
    kept = [patch for patch in range(16) if patch not in chosen]
    return Corruption(
        chosen=torch.tensor([chosen] * images),
        seen=torch.tensor([kept] * images),
        source=torch.tensor([source] * images),
        masked=torch.tensor([masked] * images),
    )


def perturbed(model: MaskedPatchPrediction) -> MaskedPatchPrediction:
    """Away from the zeros that heads start with."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES | PREFIX)
def test_logits_are_those_of_the_corrupted_patch_tokens(architecture: str, make: Make) -> None:
    model = perturbed(make(architecture=(ARCHITECTURES | PREFIX)[architecture])).eval()
    images = torch.randn(2, 3, 16, 16)
    corruption = fixed([9, 2, 5], [9, 7, 5], [True, False, False], 2)
    logits = model(images, corruption)

    # The same with the whole model run on embeddings that a hook has changed.
    def change(module: Any, args: Any, patches: torch.Tensor) -> torch.Tensor:
        changed = patches.clone()  # b d 4 4
        changed[:, :, 2, 1] = model.mask_token[:, None].T
        changed[:, :, 0, 2] = patches[:, :, 1, 3]
        return changed

    handle = model.model.patch_embed.register_forward_hook(change)
    tokens = model.model.features(images)[:, -16:]
    handle.remove()
    if architecture == "norm after pooling":
        tokens = model.model.fc_norm(tokens)
    expected = F.linear(tokens[:, [9, 2, 5]], model.predictor.weight, model.predictor.bias)
    torch.testing.assert_close(logits, expected)


def test_targets_are_of_the_pixels_and_not_of_the_normalised_values(make: Make) -> None:
    """Labels must differ between patches and images: constant ones can be had without learning."""

    pixels = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    cut = Preprocess(
        image_size=(16, 16), mean=(0.49, 0.48, 0.45), std=(0.2, 0.3, 0.25), crop_fraction=1.0
    )
    images = cut.normalize(pixels)
    whole = pixels.long()
    for target, expected in (
        ("mean_color", color_classes(whole, 4, 1)),
        ("colors_4x4", color_classes(whole, 4, 4)),
        ("pixels", patch_pixels(images, 4)),
    ):
        model = make(target=target, preprocess=cut)
        assert torch.equal(model.targets(images), expected), target
        model.to(torch.bfloat16)  # as precision bf16-true does
        assert torch.equal(model.targets(images), expected), target


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 images of one colour each, of four colours, in one flat folder."""
    root = tmp_path_factory.mktemp("planes")
    random = np.random.default_rng(1)
    colours = random.integers(0, 8, (4, 3)) * 32 + 16
    for i in range(64):
        pixels = np.broadcast_to(colours[i % 4], (16, 16, 3)) + random.integers(-9, 9, (16, 16, 3))
        Image.fromarray(pixels.astype("uint8")).save(root / f"{i:02}.png")
    return root


def data_of(make_data: Any, planes: Path, **options: Any) -> Any:
    fixed = {"root": str(planes), "image_size": 16, "batch_size": 16}
    options = {**fixed, "test_fraction": 0.0, "val_fraction": 0.25, **options}
    return make_data(**options).read_as(labelled=False)


@pytest.mark.parametrize("target", ["mean_color", "colors_4x4", "pixels"])
def test_the_colours_of_the_other_patches_are_learned(
    target: str, make: Make, make_data, make_trainer, planes: Path
) -> None:
    """Below the loss of any answer that does not look at the image; labels without content, or a
    mask that shows nothing, cannot get there on images not trained on."""
    model = make(
        target=target,
        architecture={"width": 32, "pool": "gap", "class_token": False, "pos_embed": "sincos2d"},
        optimizer=partial(MuonWithAdamW, adamw_lr=0.02),
        schedule=Schedule(warmup_steps=3),
    )
    trainer = make_trainer(max_steps=30, max_epochs=-1)
    data = data_of(make_data, planes)
    trainer.fit(model, data)
    [scores] = trainer.validate(model, data, verbose=False)
    assert scores["val/loss"] < 0.5 * scores["val/constant_loss"], scores
    if target != "pixels":
        assert scores["val/constant_loss"] == pytest.approx(np.log(4), abs=0.2)
        assert scores["val/acc1"] > 0.75 > 0.5 > scores["val/constant_acc1"]


def test_masks_of_an_evaluation_are_of_the_seed_and_the_image(
    make: Make, make_data, make_trainer, planes: Path
) -> None:
    def scores(batch_size: int, seed: int = 3) -> dict[str, float]:
        model, data = perturbed(make()), data_of(make_data, planes, batch_size=batch_size, seed=3)
        _ = data.splits
        data.seed = seed
        torch.manual_seed(batch_size)  # of no consequence
        return make_trainer().validate(model, data, verbose=False)[0]

    same, other = scores(16), scores(16, seed=4)
    assert scores(5) == pytest.approx(same)
    assert other["val/loss"] != pytest.approx(same["val/loss"], rel=1e-4)


def test_a_run_may_start_from_weights_with_a_head(make: Make, tmp_path: Path) -> None:
    classifier = image_classifier("vit_ti16", architecture=SIZES, num_classes=3, image_size=16)
    save_native(tmp_path, classifier.model, classes=None, preprocess=None, extra={})
    model = MaskedPatchPrediction.of(pretrained=str(tmp_path), image_size=16)
    state = classifier.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.model.state_dict().items())
    assert not model.model.head_layers


def test_a_hybrid_predicts_the_colours_under_its_patches() -> None:
    model = MaskedPatchPrediction.of(
        "r_vit_ti16", architecture={"width": 16, "depth": 1, "num_heads": 1}, image_size=64
    )
    images = torch.rand(1, 3, 64, 64)
    corruption = model.corruption(images)
    assert model(images, corruption).shape == (1, 2, 512)
    whole = to_bytes(images, model.preprocess)
    assert torch.equal(model.targets(images), color_classes(whole, 32, 1))
