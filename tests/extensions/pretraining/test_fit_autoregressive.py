"""`vit fit -c pretrain/autoregressive_cifar10` to a fine-tuned model and its attentive probe."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.command import TINY, Vit

PATCHES = (*TINY, "--model.architecture.class_token=false", "--model.architecture.pool=gap")
FIT = ("fit", "-c", "pretrain/autoregressive_cifar10", *PATCHES)
SMALL = ("--model.head_width=8", "--model.head_depth=1")


def test_a_run_is_complete_scored_again_fine_tuned_and_probed(vit: Vit, photos: Path) -> None:
    options = ("--data.root", photos, *SMALL, "--data.splits.test_fraction=0.2")
    done = vit(*FIT, *options, "--trainer.max_steps=4", "--run_dir=run")
    assert done.status == 0, done.err
    assert "36 images without labels" in done.err and "best constant prediction" in done.out
    summary = json.loads(Path("run/summary.json").read_text())
    scores = json.loads(vit("test", "run", "--json").out)
    assert scores == pytest.approx(
        {name: value for name, value in summary["metrics"].items() if name.startswith("test")}
    )
    state = torch.load("run/checkpoints/best.ckpt", weights_only=True)["state_dict"]
    saved = load_file("run/model/model.safetensors")
    assert {f"model.{name}" for name in saved} == {n for n in state if n.startswith("model.")}
    assert {name.split(".")[0] for name in state} - {"model"} == {"head"}
    tuned = vit(
        "fit", "-c", "cifar10/mae", "--data.root", photos, *PATCHES, "--trainer.max_steps=1",
        "--final_split=none", "--model.pretrained=run", "--run_dir=tuned",
    )  # fmt: skip
    assert tuned.status == 0, tuned.err
    probe = vit("probe", "run", "--data", photos, "--kind", "attentive", "--num-workers=0")
    assert probe.status == 0 and "chosen" in probe.out, probe.err
    assert "4 x 16 features" in probe.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model.architecture.class_token=true",), "class_token: false, pool: gap"),
        (("--model.prefix=7",), "model.prefix"),
        (("--model.head_width=6",), "head_width=6 must be a multiple of 4"),
        (("--model.name=bit_r50x1", "--model.architecture=null"), "nor a ResNet, which has none"),
        (("--model.architecture.stem_depths=[]",), "not a hybrid, whose patches"),
    ],
)
def test_a_mistake_is_one_line(args: tuple[str, ...], message: str, vit: Vit, photos: Path) -> None:
    done = vit(*FIT, "--data.root", photos, *args)
    assert done.status == 2
    [line] = [line for line in done.err.splitlines() if not line.startswith("precision ")]
    assert message in line
