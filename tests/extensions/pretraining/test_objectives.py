"""What holds of every objective without labels."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything

from vit.errors import UserError
from vit.extensions.pretraining.autoregressive import Autoregressive
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder
from vit.extensions.pretraining.masked_patches import MaskedPatchPrediction
from vit.extensions.pretraining.patch_prediction import PatchPrediction
from vit.preprocessing import Preprocess

pytestmark = pytest.mark.filterwarnings("ignore")

SIZES: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
HALF = Preprocess(image_size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
# The module, options of a small one, and what its encoder needs.
TASKS: dict[str, tuple[type[PatchPrediction], dict[str, Any], dict[str, Any]]] = {
    "masked patches": (MaskedPatchPrediction, {}, {}),
    "autoencoder": (
        MaskedAutoencoder,
        {"decoder_width": 24, "decoder_depth": 2, "decoder_heads": 2},
        {},
    ),
    "autoregressive": (
        Autoregressive,
        {"head_width": 24, "head_depth": 2},
        {"class_token": False, "pool": "gap"},
    ),
}
Make = Callable[..., PatchPrediction]


@pytest.fixture(params=TASKS)
def make(request: pytest.FixtureRequest) -> Make:
    task, small, shape = TASKS[request.param]

    def make(*, init_seed: int = 0, architecture: Any = None, **options: Any) -> PatchPrediction:
        seed_everything(init_seed, verbose=False)
        fixed = {"image_size": 16, "preprocess": HALF, **small, **options}
        return task.of("vit_ti16", architecture=SIZES | shape | (architecture or {}), **fixed)

    return make


def test_a_killed_run_continues_bitwise(
    make: Make, training_photos: Path, encoder_continues_bitwise: Callable[..., None]
) -> None:
    encoder_continues_bitwise(make, training_photos)


def test_layers_of_the_objective_have_names_of_their_own_in_a_checkpoint(make: Make) -> None:
    module = make()
    layers = module.objective.layers(module.model, fresh=False)
    state = module.state_dict()
    assert {name.partition(".")[0] for name in state} == {"model", *layers}
    assert {name for name in state if name.startswith("model.")} == {
        f"model.{name}" for name in module.model.state_dict()
    }


def test_all_parameters_are_optimized_those_of_the_encoder_first(make: Make) -> None:
    module = make()
    trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    groups = [group["names"] for group in module.make_optimizer().param_groups]
    names = [name for group in groups for name in group]
    assert sorted(names) == sorted(name.removeprefix("model.") for name in trained)
    for names in groups:
        beside = [name in trained for name in names]
        assert beside == sorted(beside)


def test_the_masks_of_an_evaluation_are_of_the_image(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "vit.extensions.pretraining.patch_prediction.counting_data", lambda trainer: None
    )
    monkeypatch.setattr(PatchPrediction, "trainer", None)
    drawn = make().corruption(torch.zeros(3, 3, 16, 16), torch.tensor([4, 10, 4])).chosen
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])


def test_an_image_of_a_single_patch_is_refused(make: Make) -> None:
    with pytest.raises(UserError, match="a single patch of 4 pixels"):
        make(image_size=4)


@pytest.mark.parametrize("task", TASKS)
def test_a_resnet_is_refused(task: str) -> None:
    with pytest.raises(UserError, match=r"name a ViT.* a ResNet"):
        TASKS[task][0].of("bit_r50x1", architecture={"depths": [1]}, image_size=32)


def test_channels_are_refused(make: Make) -> None:
    with pytest.raises(UserError, match=r"leave out data\.channels"):
        make(channels=4)
