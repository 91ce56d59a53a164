"""The recipes of the task dino: constants of the official code, and steps at a small width."""

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lib.pages import load
from tests.command import Vit, saved
from tests.extensions.ssl.trainings import pictures
from vit.recipes import find_recipe, read_options

pytestmark = pytest.mark.filterwarnings("ignore")
# facebookresearch/dinov2, dinov2/configs/ssl_default_config.yaml; vitl16_short.yaml says no other
# than that it is of ImageNet, on four machines of eight GPUs.
EPOCHS, STEPS_OF_EPOCH, BATCH = 100, 1250, 64 * 32
OFFICIAL: dict[str, Any] = {
    "data.image_size": 224,
    "data.batch_size": 64,
    "data.crops.local": 8,
    "data.crops.local_size": 96,
    "model.name": "vit_l16",
    "model.architecture.drop_path": 0.3,
    "model.architecture.drop_path_uniform": True,
    "model.architecture.layer_scale": 1e-5,
    "model.heads.prototypes": 65_536,
    "model.heads.hidden": 2048,
    "model.heads.bottleneck": 256,
    "model.heads.separate": False,
    "model.koleo": 0.1,
    "model.masks.share": 0.5,
    "model.masks.sizes": [0.1, 0.5],
    "model.teacher.momentum": 0.992,
    "model.teacher.first_temperature": 0.04,
    "model.teacher.temperature": 0.07,
    "model.teacher.warmup": 30 / EPOCHS,
    "model.teacher.student_temperature": 0.1,
    "model.teacher.centring": "centre",
    "model.pace.layer_decay": 0.9,
    "model.pace.patch_embed": 0.2,
    "model.pace.last_layer": 1 / EPOCHS,
    "model.pace.final_decay": 0.4,
    "model.optimizer.init_args.lr": 0.004 * math.sqrt(BATCH / 1024),
    "model.optimizer.init_args.betas": [0.9, 0.999],
    "model.optimizer.init_args.weight_decay": 0.04,
    "model.schedule.warmup_steps": 10 * STEPS_OF_EPOCH,
    "model.schedule.warmup_start": 0.0,
    "model.schedule.final_factor": 1e-6 / (0.004 * math.sqrt(BATCH / 1024)),
    "trainer.max_steps": EPOCHS * STEPS_OF_EPOCH,
    "trainer.gradient_clip_val": 3.0,
}
SHARPNESS = ("centring", "first_temperature", "temperature")


def value(options: Any, name: str) -> Any:
    for part in name.split("."):
        options = options[part]
    return options


def test_the_recipe_of_imagenet_has_the_constants_of_the_official_one() -> None:
    options = read_options(find_recipe("pretrain/dinov2_imagenet1k"))
    for name, expected in OFFICIAL.items():
        found = value(options, name)
        if isinstance(expected, float):
            expected = pytest.approx(expected, rel=1e-3)
        assert found == expected, name


def test_the_rate_of_a_continued_training_is_that_of_its_rule() -> None:
    options = read_options(find_recipe("pretrain/dinov2_continue"))
    rate = value(options, "model.optimizer.init_args.lr")
    assert rate == pytest.approx(2e-5 * math.sqrt(value(options, "data.batch_size") / 256))


def test_fresh_heads_of_small_batches_are_taught_so_that_answers_depend_on_the_image() -> None:
    options, toy = (
        read_options(find_recipe(f"pretrain/{n}")) for n in ("dinov2_continue", "dino_toy")
    )
    teacher = value(options, "model.teacher")
    assert [teacher[name] for name in SHARPNESS] == [toy["model"]["teacher"][n] for n in SHARPNESS]
    rate = value(options, "model.optimizer.init_args.lr") * value(options, "model.pace.heads")
    gains = {
        row["rate"]: row["after"] / row["before"]
        for row in load("papers/self_supervised/heads")["rows"]
        if all(row[name] == teacher[name] for name in SHARPNESS)
    }
    assert gains[round(rate, 9)] == max(gains.values()) > 1


SMALL = ("--data.batch_size=4", "--data.loading.num_workers=0", "--trainer.accelerator=cpu",
         "--trainer.precision=32-true", "--steps=3", "--trainer.log_every_n_steps=1")  # fmt: skip


def test_the_recipe_of_imagenet_takes_steps_at_width_64(vit: Vit, tmp_path: Path) -> None:
    shape = "{width: 64, depth: 2, mlp_dim: 256, num_heads: 1, drop_path: 0.3, layer_scale: 1e-5}"
    done = vit(
        "fit", "-c", "pretrain/dinov2_imagenet1k", "--data.root", pictures(tmp_path / "flat"),
        f"--model.architecture={shape}", "--model.heads.prototypes=128", *SMALL, "--run_dir=run",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


@pytest.mark.usefixtures("finishing")
def test_a_training_is_continued_from_an_encoder(vit: Vit, tmp_path: Path) -> None:
    done = vit(
        "fit", "-c", "pretrain/dinov2_continue", "--data.root", pictures(tmp_path / "flat"),
        "--pretrained", saved(tmp_path / "encoder", classes=None), "--data.image_size=16",
        "--data.crops.local_size=8", "--model.heads.prototypes=64", *SMALL, "--run_dir=run",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "loaded" in done.err and "train/gram" in (tmp_path / "run/metrics.csv").read_text()
    assert " million parameters to save, which follow " in done.err
    page = (tmp_path / "run/report.html").read_text()
    assert "vit knn run --data LABELLED" in page and "vit test" not in page
