"""Operations of a step of a task without labels, against closed formulas."""

import subprocess
import sys
from typing import Any

import pytest

from tests.extensions.compute.formulas import multiply_adds
from vit.errors import UserError
from vit.extensions.compute.candidate import from_config
from vit.extensions.compute.comparison import training_rows
from vit.extensions.compute.steps import counted_step
from vit.extensions.compute.trainings import CostOptions, recipe_trainings
from vit.models.zoo import ViTConfig, model_config

SIZES = {"width": 64, "depth": 3, "mlp_dim": 192, "num_heads": 2, "patch_size": 8}
HIDDEN, BOTTLENECK, PROTOTYPES = 48, 16, 40


def config_of(image_size: int, **changes: Any) -> ViTConfig:
    """Without an output for classes."""
    sizes = {**SIZES, "image_size": image_size, "num_classes": 0, **changes}
    config = model_config("vit_ti16", **sizes)
    assert isinstance(config, ViTConfig)
    return config


def layers(tokens: int, width: int, mlp: int, depth: int) -> int:
    """Multiply-adds of the layers of an encoder or decoder."""
    return depth * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * mlp)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("local", [0, 3])
def test_dino_counts_all_crops_of_student_and_teacher(local: int, separate: bool) -> None:
    sizes = {"hidden": HIDDEN, "bottleneck": BOTTLENECK, "prototypes": PROTOTYPES}
    recipe = {
        "model": {
            "heads": {**sizes, "separate": separate},
            "masks": {"share": 0.0},
            "koleo": 0.0,
            "gram": 1.0,
            "pretrained": "an/encoder",
            "pace": {"heads_alone": 0.1},
        },
        "data": {"crops": {"local": local, "local_size": 16}, "batch_size": "auto"},
    }
    (whole, pixels), (small, few) = (multiply_adds(config_of(size)) for size in (48, 16))
    head = SIZES["width"] * HIDDEN + HIDDEN * HIDDEN + HIDDEN * BOTTLENECK + BOTTLENECK * PROTOTYPES
    student = 3 * (2 * whole + local * small) - (2 * pixels + local * few)
    heads = (2 + local) * 3 * head
    teacher_and_start = 2 * (2 * whole) + 2 * head
    # Cosines of patches: three sides of an image's 36 patches, twice for the student's gradient.
    gram = 2 * (36**2 * SIZES["width"]) * (1 + 1 + 2)
    expected = 2 * (student + heads + teacher_and_start + gram)
    assert counted_step("dino", config_of(48), recipe).flops == expected


@pytest.mark.parametrize("local", [0, 3])
def test_the_student_keeps_the_activations_of_all_crops_and_the_teacher_none(local: int) -> None:
    recipe = {
        "model": {"heads": {"hidden": 1, "bottleneck": 1, "prototypes": 1}, "koleo": 0.0},
        "data": {"crops": {"local": local, "local_size": 16}},
    }
    step = counted_step("dino", config_of(48), recipe)
    large, small = (from_config("", config_of(size)).activations("bf16") for size in (48, 16))
    assert large is not None and small is not None
    expected = 2 * large.saved + local * small.saved
    assert step.activations.per_image == pytest.approx(expected, rel=0.05)
    weights = config_of(48)
    student = sum(p.numel() for p in from_config("", weights).empty().parameters())
    assert step.held == pytest.approx((18 + 4) * student, rel=0.01)


def test_an_encoder_of_mae_sees_the_rest_and_its_decoder_all_patches() -> None:
    width, depth, patches = 32, 2, 36
    recipe = {
        "model": {
            "mask_ratio": 0.75,
            "decoder_width": width,
            "decoder_depth": depth,
            "decoder_heads": 2,
        }
    }
    d, seen = SIZES["width"], patches // 4 + 1
    pixels = patches * 3 * 64 * d
    encoder = layers(seen, d, SIZES["mlp_dim"], SIZES["depth"])
    decoder = seen * d * width + layers(patches + 1, width, 4 * width, depth)
    predictor = 27 * width * 3 * 64
    expected = 2 * (3 * (pixels + encoder + decoder + predictor) - pixels)
    assert counted_step("mae", config_of(48), recipe).flops == expected


@pytest.mark.parametrize(
    ("recipe", "models"),
    [
        ("pretrain/dinov2_continue", ["vit_h14"]),
        ("pretrain/mae_cifar10", []),
        ("pretrain/autoregressive_cifar10", []),
        ("pretrain/masked_patches_cifar10", []),
    ],
)
def test_recipes_of_tasks_are_counted_by_their_own_step(recipe: str, models: list[str]) -> None:
    size = [(56, 56)] if models else []
    [training], _ = recipe_trainings(CostOptions(recipe=recipe, models=models, image_size=size))
    assert training.step and training.flops == training.images * training.step.flops
    [row], notes = training_rows(CostOptions(recipe=recipe, models=models, image_size=size))
    assert row["training_flops"] == training.step.flops
    assert any(note.startswith("Tasks without labels: all passes of a step") for note in notes)


@pytest.mark.parametrize(
    ("name", "message"),
    [("bit_r50x1", "name a ViT, not a hybrid"), ("torchvision/resnet50", "does not train it")],
)
def test_networks_that_a_task_cannot_train_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_trainings(CostOptions(recipe="pretrain/mae_imagenet1k", models=[name]))


def test_a_comparison_without_such_a_task_does_not_import_lightning() -> None:
    code = "import sys, vit.extensions.compute.comparison; print('lightning' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
