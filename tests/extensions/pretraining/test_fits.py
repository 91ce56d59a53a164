"""`vit fit -c pretrain/...` from pictures without labels to a fine-tuned model."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.command import TINY, Vit, coloured
from tests.extensions.pretraining.conftest import BESIDE
from vit.cli.main import main

PATCHES = ("--model.architecture.class_token=false", "--model.architecture.pool=gap")
SMALL = {  # task -> options of small layers beside the encoder, and what its encoder needs
    "masked_patches": ((), ()),
    "mae": (("--model.decoder_width=8", "--model.decoder_depth=1"), ()),
    "autoregressive": (("--model.head_width=8", "--model.head_depth=1"), PATCHES),
}
FROZEN = "--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0}}"


def fit_of(task: str) -> list[str]:
    small, shape = SMALL[task]
    return ["fit", "-c", f"pretrain/{task}_cifar10", *TINY, *shape, *small]


@pytest.fixture
def flat(photos: Path, tmp_path: Path) -> Path:
    """All the pictures in one folder."""
    folder = tmp_path / "flat"
    folder.mkdir()
    for path in photos.rglob("*.jpg"):
        path.rename(folder / f"{path.parent.name}{path.name}")
    return folder


@pytest.fixture(scope="module", params=SMALL)
def finished(
    finishing: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A task and its run on twelve pictures in each of three folders, whose names do not matter."""
    home = tmp_path_factory.mktemp("finished")
    options = ("--data.root", str(coloured(home / "pictures")), "--data.splits.test_fraction=0.2")
    steps = ("--trainer.max_steps=4", "--trainer.log_every_n_steps=1")
    words = [*fit_of(request.param), *options, *steps]
    assert main([*words, "--run_dir", str(home / "run")]) == 0
    return request.param, home / "run"


@pytest.fixture
def run(finished: tuple[str, Path], tmp_path: Path) -> Path:
    """A copy of the finished run, called run."""
    return Path(shutil.copytree(finished[1], tmp_path / "run"))


def test_a_run_says_what_it_found(vit: Vit, photos: Path) -> None:
    done = vit(*fit_of("masked_patches"), "--data.root", photos, "--trainer.max_steps=1")
    assert done.status == 0, done.err
    assert "36 images without labels" in done.err and "random initial weights" not in done.err
    assert "of the colours are right" in done.out and "best constant prediction" in done.out
    assert "--pretrained runs/" in done.out and "vit classify" not in done.out
    beside = 16 + 16 * 512 + 512  # the mask token, and the predictor
    assert f"and {beside:,} of the objective" in done.err


def test_a_run_directory_is_complete(finished: tuple[str, Path]) -> None:
    task, run = finished
    files = "curves.png masked_patches.png model/config.json checkpoints/last.ckpt"
    for name in files.split():
        assert (run / name).stat().st_size > 0, name
    page = (run / "report.html").read_text()
    for words in ("Test loss", "Predicted colours", "Loss of the best constant prediction"):
        assert words in page
    summary = json.loads((run / "summary.json").read_text())
    assert summary["classes"] == [] and summary["checkpoint"]["monitor"] == "val/loss"
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"train/loss", "val/loss", "val/constant_loss", "lr"} <= set(rows[0])
    assert {"val/loss", "test/loss", "test/constant_loss"} <= set(summary["metrics"])
    saved = load_file(run / "model" / "model.safetensors")
    best = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
    assert {name.split(".")[0] for name in best} == {"model", *BESIDE[task]}
    assert {f"model.{name}" for name in saved} == {n for n in best if n.startswith("model.")}
    assert all(torch.equal(saved[name], best[f"model.{name}"]) for name in saved)
    fixed = 0 if task == "masked_patches" else saved["pos_embed"].numel()
    total = sum(tensor.numel() for tensor in best.values())
    assert summary["trained_parameters"] == total - fixed


def test_a_run_is_scored_again_as_at_its_end(run: Path, vit: Vit) -> None:
    metrics = json.loads((run / "summary.json").read_text())["metrics"]
    for command, split in (("test", "test"), ("validate", "val")):
        scores = json.loads(vit(command, run, "--json").out)
        assert scores == pytest.approx({k: v for k, v in metrics.items() if k.startswith(split)})
    shutil.rmtree(run / "model")  # as before the end
    assert json.loads(vit("validate", run, "--json").out) == scores


def test_fine_tuning_starts_from_the_encoder_and_a_zero_head(
    finished: tuple[str, Path], vit: Vit, photos: Path
) -> None:
    task, run = finished
    recipe = "finetune" if task == "masked_patches" else "cifar10/mae"
    tuned = vit(
        "fit", "-c", recipe, "--data.root", photos, *TINY, *SMALL[task][1], FROZEN,
        "--trainer.max_steps=1", "--final_split=none", "--model.pretrained", run,
        "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    assert "the file has no head" in tuned.err
    before, after = (load_file(Path(r) / "model/model.safetensors") for r in (run, "tuned"))
    assert {n for n in after if n not in before} == {"head.weight", "head.bias"}
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("finished", ["mae"], indirect=True)
def test_an_encoder_is_probed_and_names_nothing(run: Path, vit: Vit, photos: Path) -> None:
    probe = vit("probe", run, "--data", photos, "--kind", "attentive", "--num-workers=0")
    assert probe.status == 0 and "chosen" in probe.out, probe.err
    assert "4 x 16 features" in probe.err
    for args in (("predict", run), ("classify", run, photos / "red" / "00.jpg")):
        done = vit(*args)
        assert done.status == 2
        assert (
            done.err.count("\n") == 1 and "fit a head" in done.err and "first: vit fit" in done.err
        )


@pytest.mark.parametrize("finished", ["mae"], indirect=True)
def test_other_images_are_all_scored(run: Path, vit: Vit, flat: Path) -> None:
    assert json.loads(vit("test", run, "--data.root", flat, "--json").out)["test/loss"] > 0
    done = vit("validate", run, "--data.root", flat)
    assert done.status == 2 and "has no val split" in done.err


def test_a_stopped_run_continues_with_its_objective(vit: Vit, photos: Path) -> None:
    constant = ("--model.schedule={decay: constant, warmup_steps: 0}", "--final_split=none")
    fit = (*fit_of("mae"), *constant, "--data.root", photos)
    vit(*fit, "--trainer.max_steps=4", "--run_dir=whole")
    vit(*fit, "--trainer.max_steps=2", "--run_dir=parts")
    Path("parts/summary.json").unlink()  # as if it had been stopped
    for other, message in (
        ("--model.norm_pix=false", "other values of model.norm_pix (was True, is False)"),
        ("--model.decoder_depth=2", "other values of model.decoder_depth (was 1, is 2)"),
    ):
        done = vit(*fit, "--run_dir=parts", "--trainer.max_steps=4", other)
        assert done.status == 2 and message in done.err, done.err
    done = vit("fit", "--run_dir=parts", "--trainer.max_steps=4")
    assert done.status == 0, done.err
    whole, parts = (
        torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_another_target_goes_through_on_a_flat_folder(vit: Vit, flat: Path) -> None:
    words = ("--data.root", flat, "--trainer.max_steps=1", "--model.target=pixels")
    done = vit(*fit_of("masked_patches"), *words)
    assert done.status == 0, done.err
    assert "val loss" in done.out and "colours are right" not in done.out


def test_a_task_without_labels_needs_a_recipe(vit: Vit, photos: Path) -> None:
    done = vit("fit", "--task", "mae", "--data.root", photos)
    assert done.status == 2 and "--task mae needs a recipe: -c pretrain/" in done.err


@pytest.mark.parametrize(
    ("task", "args", "message"),
    [
        ("masked_patches", ("--task=clasification",), "did you mean 'classification'?"),
        ("masked_patches", ("--model.target=colour",), "target"),
        ("masked_patches", ("--model.mixing.mixup=0.2",), "mixing"),
        ("masked_patches", ("--data.sampling.balanced=true",), "balanced needs labels"),
        ("mae", ("--model.decoder_width=six",), "model.decoder_width: Expected a int"),
        ("mae", ("--model.variant.mixer=window",), "did you mean 'model.architecture'"),
        ("mae", ("--model.mask_rate=0.5",), "did you mean 'model.mask_ratio'"),
        ("mae", ("--model.schedule.warmup_step=5",), "'warmup_step' is not accepted"),
        ("autoregressive", ("--model.prefix=7",), "model.prefix"),
    ],
)
def test_a_mistake_is_one_line(
    task: str, args: tuple[str, ...], message: str, vit: Vit, photos: Path
) -> None:
    done = vit(*fit_of(task), "--data.root", photos, *args)
    assert done.status == 2
    [line] = [line for line in done.err.splitlines() if not line.startswith("precision ")]
    assert message in line


def test_options_of_the_task_are_listed(vit: Vit) -> None:
    shown = vit("fit", "-c", "pretrain/mae_cifar10", "--help-all").out
    words = " ".join(shown.split())
    for option in ("--model.mask_ratio", "--model.pretrained", "--model.schedule"):
        assert option in shown, option
    assert "Share of the patches of each image that the encoder does not see" in words
    assert "Fields of the model's configuration to change" in words  # of the class above
    for absent in ("--model.mixing", "--model.shared", "--model.predicted"):
        assert absent not in shown
