"""A part from the command line: trained, saved, read by every command, and mistakes."""

import json
from pathlib import Path

import vit as package
from tests.command import TINY, Vit

OPTION = "--model.architecture.variant.positions"
MLP, STACK = "--model.architecture.variant.mlp", "--model.architecture.variant.stack"


def test_a_part_is_trained_saved_and_read_by_every_command(vit: Vit, photos: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=2")
    done = vit(*fit, OPTION, "{name: relative, size: 2}", "--run_dir=run")
    assert done.status == 0, done.err
    model = json.loads(Path("run/model/config.json").read_text())["model"]
    assert model["variant"] == {"positions": {"name": "relative", "size": [2, 2]}}
    network = package.load("run").model
    assert network.config.variant == model["variant"]
    for command in ("fewshot", "probe"):
        done = vit(command, "run", "--data", photos, "--json")
        assert done.status == 0, done.err
    counted = json.loads(vit("compare", "run", "--json").out)
    assert counted
    # Other weights, of another image size: the table keeps the grid that it was made for.
    larger = ("--model.pretrained=run", "--data.image_size=48", "--run_dir=larger")
    done = vit(*fit, *larger)
    assert done.status == 0, done.err
    assert (
        json.loads(Path("larger/model/config.json").read_text())["model"]["variant"]
        == (model["variant"])
    )


def test_a_run_with_experts_and_accumulated_batches_in_bfloat16_learns(
    vit: Vit, photos: Path
) -> None:
    changes = (MLP, "{name: experts, experts: 2}",
               "--model.architecture.variant.norm", "{name: rms}")  # fmt: skip
    steps = ("--trainer.max_steps=2", "--trainer.accumulate_grad_batches=2")
    done = vit("fit", "-c", "cifar10", "--data.root", photos, *TINY, *steps, *changes,
               "--trainer.precision=bf16-mixed", "--run_dir=run")  # fmt: skip
    assert done.status == 0, done.err
    parts = package.load("run").model.config.variant
    assert parts == {
        "mlp": {"name": "experts", "experts": 2, "chosen": 1, "capacity": 1.25, "expert": "plain"},
        "norm": {"name": "rms"},
    }


def test_a_mistake_is_one_line_before_training(vit: Vit, photos: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--run_dir=run")
    for arguments, message in (
        ((OPTION, "{name: relativ}"), "did you mean 'relative'"),
        ((OPTION, "{name: relative, siz: 4}"), "did you mean 'size'"),
        ((MLP, "{name: experts, chosen: 5}"), "choose at most 4"),
        ((STACK, "{name: funnel, stages: 4}"), "are more than the depth, 1"),
        (("--model.name=bit_r50x1", OPTION, "{name: relative}"), "has no attention"),
    ):
        done = vit(*fit, *arguments)
        assert done.status == 2 and message in done.err.strip().splitlines()[-1]
        assert not Path("run/model").exists()
