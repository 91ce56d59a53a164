"""`vit fit -c pretrain/mae_cifar10` from pictures without labels to a fine-tuned model."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.command import TINY, Vit

FIT = ("fit", "-c", "pretrain/mae_cifar10", *TINY)
SMALL = ("--model.decoder_width=8", "--model.decoder_depth=1")


def test_a_run_is_complete_scored_again_and_fine_tuned(vit: Vit, photos: Path) -> None:
    options = ("--data.root", photos, *SMALL, "--data.splits.test_fraction=0.2")
    done = vit(*FIT, *options, "--trainer.max_steps=4", "--run_dir=run")
    assert done.status == 0, done.err
    assert "36 images without labels" in done.err and "best constant prediction" in done.out
    summary = json.loads(Path("run/summary.json").read_text())
    scores = json.loads(vit("test", "run", "--json").out)
    assert scores == pytest.approx(
        {name: value for name, value in summary["metrics"].items() if name.startswith("test")}
    )
    assert Path("run/masked_patches.png").stat().st_size
    state = torch.load("run/checkpoints/best.ckpt", weights_only=True)["state_dict"]
    saved = load_file("run/model/model.safetensors")
    assert {f"model.{name}" for name in saved} == {n for n in state if n.startswith("model.")}
    rest = {name.split(".")[0] for name in state} - {"model"}
    assert rest == {"decoder", "mask_token"}

    frozen = "--model.optimizer={class_path: torch.optim.SGD, init_args: {lr: 0}}"
    tuned = vit(
        "fit", "-c", "cifar10/mae", "--data.root", photos, *TINY, frozen, "--trainer.max_steps=1",
        "--final_split=none", "--model.pretrained=run", "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    after = load_file("tuned/model/model.safetensors")
    assert {name for name in after if name not in saved} == {"head.weight", "head.bias"}
    assert all(torch.equal(saved[name], after[name]) for name in saved)


def test_a_stopped_run_continues(vit: Vit, photos: Path) -> None:
    constant = ("--model.schedule={decay: constant, warmup_steps: 0}", "--final_split=none", *SMALL)
    constant += ("--data.root", str(photos))
    vit(*FIT, *constant, "--trainer.max_steps=6", "--run_dir=whole")
    vit(*FIT, *constant, "--trainer.max_steps=3", "--run_dir=parts")
    done = vit("fit", "--run_dir=parts", "--trainer.max_steps=6")
    assert done.status == 0, done.err
    whole, parts = (
        torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for run in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_stopped_run_keeps_its_objective(vit: Vit, photos: Path) -> None:
    options = (*SMALL, "--data.root", photos, "--run_dir=run")
    assert vit(*FIT, *options, "--trainer.max_steps=2", "--final_split=none").status == 0
    Path("run/summary.json").unlink()  # as if it had been stopped
    done = vit(*FIT, *options, "--trainer.max_steps=4", "--model.norm_pix=false")
    assert done.status == 2, done.err
    assert "other values of model.norm_pix (was True, is False)" in done.err


def test_another_decoder_is_refused_at_a_resume(vit: Vit, photos: Path) -> None:
    fit = (*FIT, "--data.root", photos, "--model.decoder_width=8", "--run_dir=run")
    two = (*fit, "--model.decoder_depth=2", "--final_split=none")
    assert vit(*two, "--trainer.max_steps=2").status == 0
    for depth in (1, 3):
        done = vit(*two, f"--model.decoder_depth={depth}", "--trainer.max_steps=4")
        Path("run/summary.json").unlink(missing_ok=True)  # as if it had been stopped
        assert done.status == 2, done.err
        done = vit(*two, f"--model.decoder_depth={depth}", "--trainer.max_steps=4")
        assert done.status == 2 and "cannot resume run/checkpoints/last.ckpt: shape." in done.err


def test_parameters_of_the_decoder_are_counted(vit: Vit, photos: Path) -> None:
    done = vit(*FIT, *SMALL, "--data.root", photos, "--trainer.max_steps=1", "--run_dir=run")
    decoder = {
        name: tensor.numel()
        for name, tensor in torch.load("run/checkpoints/last.ckpt", weights_only=True)[
            "state_dict"
        ].items()
        if not name.startswith("model.")
    }
    summary = json.loads(Path("run/summary.json").read_text())
    fixed = load_file("run/model/model.safetensors")["pos_embed"].numel()
    total = summary["parameters"] - fixed + sum(decoder.values())
    assert summary["trained_parameters"] == total
    assert f"and {sum(decoder.values()):,} of the objective" in done.err


def test_a_task_without_labels_needs_a_recipe(vit: Vit, photos: Path) -> None:
    done = vit("fit", "--task", "mae", "--data.root", photos)
    assert done.status == 2 and "--task mae needs a recipe: -c pretrain/" in done.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model.mask_ratio=1.5",), "mask_ratio=1.5 must be in (0, 1)"),
        (("--model.mask_ratio=0.99",), "leaves none of 4 patches to see; lower it"),
        (("--model.decoder_width=six",), "model.decoder_width: Expected a int. Got value: six"),
        (("--model.variant.mixer=window",), "did you mean 'model.architecture'"),
        (("--model.mask_rate=0.5",), "--model.mask_rate=0.5; did you mean 'model.mask_ratio'"),
        (("--model.schedule.warmup_step=5",), "Option 'warmup_step' is not accepted"),
        (("--model.name=bit_r50x1", "--model.architecture=null"), "nor a ResNet, which has none"),
        (("--model.architecture.stem_depths=[]",), "not a hybrid, whose patches"),
    ],
)
def test_a_mistake_is_one_line(args: tuple[str, ...], message: str, vit: Vit, photos: Path) -> None:
    done = vit(*FIT, "--data.root", photos, *args)
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
    assert "--model.mixing" not in shown and "--model.shared" not in shown
