"""What holds of every objective without labels alone; tests/training has what holds of all."""

from functools import partial
from typing import Any

import pytest
import torch

from tests.extensions.pretraining.conftest import ARCHITECTURES, BESIDE, PREFIX, TASKS, Make
from vit.errors import UserError
from vit.extensions.pretraining.masking import color_classes, patch_pixels, rows

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=TASKS)
def make(request: pytest.FixtureRequest, make_task: Make) -> Make:
    return partial(make_task, request.param)


@pytest.mark.parametrize("task", TASKS)
def test_layers_of_the_objective_have_names_of_their_own(task: str, make_task: Make) -> None:
    module = make_task(task)
    state = module.state_dict()
    assert {name.partition(".")[0] for name in state} == {"model", *BESIDE[task]}
    encoder = {f"model.{name}" for name in module.model.state_dict()}
    assert {name for name in state if name.startswith("model.")} == encoder


def test_all_parameters_are_optimized_those_of_the_encoder_first_and_kernels_decay(
    make: Make,
) -> None:
    module = make()
    trained = {
        name.removeprefix("model."): parameter.ndim > 1
        and not name.endswith(("_token", "pos_embed", "positions"))
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    encoder, decays = {name for name, _ in module.model.named_parameters()}, {}
    for group in module.make_optimizer().param_groups:
        beside = [name not in encoder for name in group["names"]]
        assert beside == sorted(beside)
        decays |= dict.fromkeys(group["names"], group["weight_decay"] > 0)
    assert decays == trained


def test_masks_of_an_evaluation_are_of_the_seed_and_the_image_and_of_training_of_the_step(
    make: Make,
) -> None:
    module, images = make(), torch.zeros(3, 3, 16, 16)
    places = torch.tensor([4, 10, 4])
    first, other = (module.corruption(images, places, seed).chosen for seed in (3, 4))
    assert torch.equal(first[0], first[2]) and not torch.equal(first[0], first[1])
    assert torch.equal(module.corruption(images[:1], places[:1], 3).chosen, first[:1])
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    step, next_step = (module.corruption(images).chosen for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(module.corruption(images).chosen, step)
    assert not torch.equal(step, next_step)


@pytest.mark.parametrize(
    ("task", "architecture", "options"),
    [
        *((task, shape, {}) for task in TASKS for shape in ARCHITECTURES.values()),
        *((task, shape, {}) for task in ("masked_patches", "mae") for shape in PREFIX.values()),
        *(("mae", shape, {"mask_in_encoder": True}) for shape in ARCHITECTURES.values()),
    ],
)
def test_every_trained_parameter_gets_a_gradient(
    task: str, architecture: dict[str, Any], options: dict[str, Any], make_task: Make
) -> None:
    if task == "autoregressive":
        architecture = {**architecture, "pool": "gap"}
    module = make_task(task, architecture=architecture, **options)
    with torch.no_grad():  # away from the zeros that heads start with
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    module.training_loss((torch.randn(4, 3, 16, 16),)).backward()
    for name, parameter in module.named_parameters():
        key_bias = "rotary" in architecture and name.endswith("qkv.bias")
        if parameter.requires_grad and not key_bias:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    pooling = {"attn_pool"} if architecture.get("pool") == "map" else set()
    frozen = {n.split(".")[1] for n, p in module.named_parameters() if not p.requires_grad}
    assert frozen - {"pos_embed"} == pooling


@pytest.mark.parametrize(
    ("task", "options"),
    [
        *(("masked_patches", {"target": t}) for t in ("mean_color", "colors_4x4", "pixels")),
        *(("mae", {"norm_pix": norm_pix}) for norm_pix in (True, False)),
        ("autoregressive", {}),
    ],
)
def test_pictures_show_what_the_encoder_saw_and_what_was_there(
    task: str, options: dict[str, Any], make_task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, places = make_task(task, **options), torch.tensor([3, 8])
    pixels = torch.randint(0, 256, (2, 3, 16, 16))
    images = (pixels.float() / 255 - 0.5) / 0.5
    if not module.target.num_classes:  # predicts all that there is to know
        monkeypatch.setattr(
            module, "forward", lambda x, hidden: rows(module.targets(x), hidden.chosen)
        )
    pictures = module.pictures(images, places, seed=1)
    corruption = module.corruption(images, places, seed=1)
    assert torch.equal(pictures["images"], pixels)
    marks, seen, whole = (
        patch_pixels(shown, 4) for shown in (pictures["corrupted"], pictures["seen"], pixels)
    )
    for i, (chosen, masked) in enumerate(zip(corruption.chosen, corruption.masked, strict=True)):
        expected = torch.zeros(16, dtype=torch.bool).index_fill(0, chosen, True)
        assert torch.equal(marks[i].bool(), expected[:, None].expand(16, 16))
        assert torch.equal(seen[i][~expected], whole[i][~expected])
        assert (seen[i][chosen[masked]] == 128).all()
    if module.target.num_classes:
        side = 4 if options["target"] == "colors_4x4" else 1
        assert torch.equal(color_classes(pictures["true"], 4, side), module.targets(images))
    else:
        assert torch.equal(pictures["true"], pixels)
        assert torch.equal(pictures["predicted"], pixels)


@pytest.mark.parametrize("task", TASKS)
def test_a_resnet_is_refused(task: str) -> None:
    with pytest.raises(UserError, match=r"name a ViT.* a ResNet"):
        TASKS[task][0].of("bit_r50x1", architecture={"depths": [1]}, image_size=32)


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        *((task, {"image_size": 4}, "a single patch of 4 pixels") for task in TASKS),
        *((task, {"channels": 4}, r"leave out data\.channels") for task in TASKS),
        *(
            (task, {"architecture": stem}, "not a hybrid")
            for task in ("mae", "autoregressive")
            for stem in ({"stem_depths": []}, {"variant": {"stem": "convolutions"}})
        ),
        ("masked_patches", {"fraction": 0.0}, r"fraction=0.0 must be in \(0, 1\)"),
        ("masked_patches", {"fraction": 1.0}, r"fraction=1.0 must be in \(0, 1\)"),
        (
            "masked_patches",
            {"target": "colors_4x4", "architecture": {"patch_size": 2}},
            "multiple of 4, not 2",
        ),
        ("mae", {"mask_ratio": 1.0}, r"mask_ratio=1.0 must be in \(0, 1\)"),
        ("mae", {"mask_ratio": 0.95}, "mask_ratio=0.95 leaves none of 16 patches to see"),
        ("mae", {"mask_ratio": 1e-17}, "leaves none of 16 patches to predict; raise it"),
        ("mae", {"decoder_heads": 5}, "the decoder .*width=24 is not a multiple of num_heads=5"),
        ("mae", {"decoder_width": 10}, "the decoder .*width=10 must be a multiple of 4"),
        ("mae", {"architecture": {"variant": {"positions": "alibi"}}}, "positions at the stem"),
        ("mae", {"architecture": {"variant": {"mixer": "window"}}}, "without mixer"),
        ("mae", {"architecture": {"variant": {"stack": "funnel"}}}, "leave out .*stack"),
        ("autoregressive", {"architecture": {"class_token": True}}, "class_token: false"),
        ("autoregressive", {"architecture": {"num_registers": 2}}, "without registers"),
        ("autoregressive", {"head_width": 10}, "head_width=10 must be a multiple of 4"),
        ("autoregressive", {"head_width": 0}, "head_width=0 must be a multiple of 4"),
        ("autoregressive", {"head_depth": -1}, "head_depth=-1 must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(task: str, options: dict, message: str, make_task: Make) -> None:
    with pytest.raises(UserError, match=message):
        make_task(task, **options)
