"""A part from the command line: trained, saved, read by every command, and mistakes."""

import json
from pathlib import Path

import vit as package
from tests.command import TINY, Vit

OPTION = "--model.architecture.variant.positions"


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


def test_a_mistake_is_one_line_before_training(vit: Vit, photos: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", photos, *TINY, "--run_dir=run")
    for arguments, message in (
        ((OPTION, "{name: relativ}"), "did you mean 'relative'"),
        ((OPTION, "{name: relative, siz: 4}"), "did you mean 'size'"),
        (("--model.name=bit_r50x1", OPTION, "{name: relative}"), "has no attention"),
    ):
        done = vit(*fit, *arguments)
        assert done.status == 2 and message in done.err.strip().splitlines()[-1]
        assert not Path("run/model").exists()
