"""`vit fit -c pretrain/...` from pictures without labels to a fine-tuned model."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.command import TINY, Vit, coloured
from vit.cli.main import main

FIT = ("fit", "-c", "pretrain/masked_patches_cifar10", *TINY)
STEPS = ("--trainer.max_steps=4", "--trainer.log_every_n_steps=1")


@pytest.fixture
def flat(photos: Path, tmp_path: Path) -> Path:
    """All the pictures in one folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for path in photos.rglob("*.jpg"):
        path.rename(folder / f"{path.parent.name}{path.name}")
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on twelve pictures in each of three class folders, whose names do not matter."""
    home = tmp_path_factory.mktemp("finished")
    pictures = coloured(home / "pictures")
    options = ("--data.root", str(pictures), "--data.splits.test_fraction=0.2", *STEPS)
    assert main([*FIT, *options, "--run_dir", str(home / "run")]) == 0
    return home / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, called run."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_says_what_it_found(vit: Vit, photos: Path) -> None:
    done = vit(*FIT, "--data.root", photos, "--trainer.max_steps=1", "--run_dir=run")
    assert done.status == 0, done.err
    assert "36 images without labels" in done.err and "random initial weights" not in done.err
    assert "of the colours are right" in done.out and "best constant prediction" in done.out
    assert "--pretrained run " in done.out and "vit classify" not in done.out


def test_a_run_directory_is_complete(run: Path) -> None:
    files = "curves.png masked_patches.png model/config.json checkpoints/last.ckpt"
    for name in files.split():
        assert (run / name).stat().st_size > 0, name
    page = (run / "report.html").read_text()
    for words in ("Test loss", "Predicted colours", "Accuracy of the best constant prediction"):
        assert words in page
    summary = json.loads((run / "summary.json").read_text())
    assert summary["classes"] == [] and summary["checkpoint"]["monitor"] == "val/loss"
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"train/loss", "val/loss", "val/constant_loss", "test/acc1", "lr"} <= set(rows[0])
    assert {"val/loss", "test/loss", "test/constant_acc1"} <= set(summary["metrics"])


def test_the_saved_model_is_the_encoder_of_the_best_checkpoint(run: Path) -> None:
    saved = load_file(run / "model" / "model.safetensors")
    best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert {f"model.{name}" for name in saved} == {n for n in best if n.startswith("model.")}
    assert all(torch.equal(saved[name], best[f"model.{name}"]) for name in saved)


@pytest.mark.parametrize("recipe", ["cifar10", "finetune"])
def test_fine_tuning_starts_from_the_encoder_and_a_zero_head(
    recipe: str, run: Path, vit: Vit, photos: Path
) -> None:
    frozen = ("--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0}}",)
    tuned = vit(
        "fit", "-c", recipe, "--data.root", photos, *TINY, *frozen, "--trainer.max_steps=1",
        "--final_split=none", "--model.pretrained", run, "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    assert "the file has no head" in tuned.err
    before, after = (load_file(Path(r) / "model/model.safetensors") for r in (run, "tuned"))
    assert {n for n in after if n not in before} == {"head.weight", "head.bias"}
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_run_is_scored_again_as_at_its_end(run: Path, vit: Vit) -> None:
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    for command, split in (("test", "test"), ("validate", "val")):
        scores = json.loads(vit(command, run, "--json").out)
        assert scores == pytest.approx({k: v for k, v in metrics.items() if k.startswith(split)})
    shutil.rmtree(run / "model")  # as before the end
    assert json.loads(vit("validate", run, "--json").out) == scores


def test_other_images_are_all_scored(run: Path, vit: Vit, flat: Path) -> None:
    assert json.loads(vit("test", run, "--data.root", flat, "--json").out)["test/loss"] > 0
    done = vit("validate", run, "--data.root", flat)
    assert done.status == 2 and "has no val split" in done.err


def test_an_encoder_names_nothing(run: Path, vit: Vit, photos: Path) -> None:
    for args in (("predict", run), ("classify", run, photos / "red" / "00.jpg")):
        done = vit(*args)
        assert done.status == 2
        assert done.err.count("\n") == 1 and "fit a head to it first: vit fit" in done.err


def test_a_stopped_run_continues(vit: Vit, photos: Path) -> None:
    constant = ("--model.schedule={decay: constant, warmup_steps: 0}", "--final_split=none")
    constant += ("--data.root", str(photos))
    vit(*FIT, *constant, "--trainer.max_steps=8", "--run_dir=whole")
    vit(*FIT, *constant, "--trainer.max_steps=4", "--run_dir=parts")
    done = vit("fit", "--run_dir=parts", "--trainer.max_steps=8")
    assert done.status == 0, done.err
    whole, parts = (
        torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize("target", ["colors_4x4", "pixels"])
def test_the_other_targets_go_through_on_a_flat_folder(target: str, vit: Vit, flat: Path) -> None:
    done = vit(*FIT, "--data.root", flat, "--trainer.max_steps=1", f"--model.target={target}")
    assert done.status == 0, done.err
    assert "val loss" in done.out
    assert ("colours are right" in done.out) == (target != "pixels")
    assert vit("validate", "runs/pretrain_masked_patches_cifar10").status == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--task=clasification",), "unknown task 'clasification'; did you mean 'classification'?"),
        (("--model.fraction=2",), "fraction=2.0 must be in (0, 1)"),
        (("--model.target=colour",), "target"),
        (("--model.architecture.patch_size=16",), "a single patch of 16 pixels"),
        (("--model.name=bit_r50x1", "--model.architecture=null"), "not a ResNet"),
        (("--model.mixing.mixup=0.2",), "mixing"),
        (("--data.sampling.balanced=true",), "balanced needs labels"),
    ],
)
def test_a_mistake_is_one_line(args: tuple[str, ...], message: str, vit: Vit, photos: Path) -> None:
    done = vit(*FIT, "--data.root", photos, *args)
    assert done.status == 2
    [line] = [line for line in done.err.splitlines() if not line.startswith("precision ")]
    assert message in line


def test_options_of_the_task_are_listed(vit: Vit) -> None:
    shown = vit("fit", "-c", "pretrain/masked_patches", "--help-all").out
    assert "--model.fraction" in shown and "--model.mixing" not in shown
    assert "--model.mixing" in vit("fit", "--help-all").out
