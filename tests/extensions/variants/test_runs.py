"""A part from the command line: trained, saved, read by every command, and mistakes."""

import json
from pathlib import Path

import vit as package
from tests.command import TINY, Vit
from vit.weights.native import save_native
from vit.weights.pretrained import load_pretrained

OPTION = "--model.architecture.variant.positions"
MLP = "--model.architecture.variant.mlp"


def test_a_part_is_trained_saved_and_read_by_every_command(vit: Vit, photos: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--trainer.max_steps=2")
    done = vit(*fit, OPTION, "{name: relative, size: 2}", "--run_dir=run")
    assert done.status == 0, done.err
    model = json.loads(Path("run/model/config.json").read_text())["model"]
    assert model["variant"] == {"positions": {"name": "relative", "size": [2, 2]}}
    network = package.load("run").model
    assert network.config.variant == model["variant"]
    for command in (("fewshot", "run", "--data", photos), ("compare", "run")):
        done = vit(*command, "--json")
        assert done.status == 0 and json.loads(done.out), done.err
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


def test_parts_from_python_are_mappings() -> None:
    parts = {"mlp": "swiglu", "mixer": {"name": "window", "size": 2}}
    for options in (
        {"model": {"architecture": {"variant": parts}}},
        {f"model.architecture.variant.{kind}": part for kind, part in parts.items()},
    ):
        module, _ = package.from_recipe("quickstart", **options)
        found = module.model.config.variant  # pyright: ignore
        assert found["mlp"] == {"name": "swiglu"} and found["mixer"]["size"] == [2, 2]


def test_weights_keep_their_other_parts_and_say_what_is_changed(tmp_path: Path) -> None:
    fields = {"num_classes": 3, "image_size": 32, "width": 16, "depth": 1, "num_heads": 2}
    parts = {"mlp": "relu", "residual": "post"}
    model = package.create_model("vit_ti16", **fields, variant=parts)
    save_native(tmp_path, model, classes=None, preprocess=None, extra={})
    same, report = load_pretrained(tmp_path, variant={"residual": {"name": "post"}})
    assert same.config == model.config and report.notes == []
    other, report = load_pretrained(tmp_path, variant={"residual": {"name": "none"}}, drop_path=0)
    assert other.config.variant == {"mlp": {"name": "relu"}, "residual": {"name": "none"}}
    [line] = report.notes
    assert line.startswith("the model differs from the file's: variant={'mlp': {'name': 'relu'}")
    _, report = load_pretrained(tmp_path, num_heads=4, pool="gap", dropout=0.1, num_classes=2)
    assert report.notes == [
        "the model differs from the file's: num_heads=4 (there 2), pool=gap (there cls)"
    ]


def test_a_mistake_is_one_line_before_training(vit: Vit, photos: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--run_dir=run")
    for arguments, message in (
        ((OPTION, "{name: relativ}"), "did you mean 'relative'"),
        ((MLP, "{name: experts, chosen: 5}"), "choose at most 4"),
    ):
        done = vit(*fit, *arguments)
        assert done.status == 2 and message in done.err.strip().splitlines()[-1]
        assert not Path("run/model").exists()
