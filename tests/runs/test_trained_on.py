"""A run that starts from another one: its test holds no image that the weights have seen."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit as package
from tests.command import Vit
from vit.checkpoints.native import save_native
from vit.preprocessing import Preprocess

ARCHITECTURE = {"patch_size": 8, "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
SMALL = ("--data.batch_size=16", "--data.loading.num_workers=0", "--trainer.precision=32-true")


@pytest.fixture(autouse=True)
def encoder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = package.create_model("vit_ti16", num_classes=0, image_size=16, **ARCHITECTURE)
    folder = tmp_path / "encoder"
    steps = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(folder, model, classes=None, preprocess=steps, extra={})
    return folder


def pictures(root: Path, folders: tuple[str, ...], count: int, first: int = 0) -> Path:
    """`count` pictures in each folder, all of them different."""
    for number, name in enumerate(folders):
        (root / name).mkdir(parents=True, exist_ok=True)
        for at in range(first, first + count):
            random = np.random.default_rng([number, at])
            pixels = random.integers(0, 90, (18, 20, 3))
            pixels[..., number % 3] += 150
            Image.fromarray(pixels.astype("uint8")).save(root / name / f"{at:03}.png")
    return root


def printed(out: str) -> list[list[str]]:
    """The words of each command that is printed at the end of a fit."""
    lines = out.partition("\nnext:\n")[2].splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    assert commands and all(words[0] == "vit" for words in commands)
    return commands


def names(vit: Vit, run: str, split: str) -> set[str]:
    """The images of a split, by the paths in a file of predictions."""
    done = vit("predict", run, "--split", split, "--out", "predictions.csv")
    assert done.status == 0, done.err
    with Path("predictions.csv").open(encoding="utf-8") as file:
        return {Path(row["image"]).as_posix() for row in csv.DictReader(file)}


def in_a_tree(root: Path) -> Path:
    return pictures(root, ("pet/cat", "pet/dog", "wild/fox"), 30)


def in_a_list(root: Path) -> Path:
    pictures(root, ("a", "b", "c"), 30)
    files = sorted(root.rglob("*.png"))
    rows = [f"{p.relative_to(root)},{p.parent.name};any" for p in files]
    (root / "list.csv").write_text("\n".join(["where,what", *rows]) + "\n")
    return root / "list.csv"


SETS: dict[str, tuple[Any, list[str]]] = {
    "plain": (lambda root: pictures(root, ("a", "b", "c"), 30), []),
    "seed": (lambda root: pictures(root, ("a", "b", "c"), 30), ["--seed", "3"]),
    "splits": (
        lambda root: pictures(root, ("a", "b", "c"), 30),
        ["--data.splits.seed", "7", "--data.splits.test_fraction", "0.3"],
    ),
    "tree": (in_a_tree, ["--data.labels", "tree", "--seed", "1"]),
    "columns": (
        in_a_list,
        shlex.split(
            "--data.columns.path where --data.columns.label what --data.label_separator ';' "
            "--data.loading.on_error skip"
        ),
    ),
    "shards": (lambda root: pictures(root, ("a", "b", "c"), 30), ["--seed", "2"]),
}


@pytest.mark.parametrize("name", SETS)
def test_each_command_that_a_probe_prints_works_and_tests_on_images_it_did_not_learn(
    vit: Vit, tmp_path: Path, name: str
) -> None:
    make, options = SETS[name]
    data = make(tmp_path / "my data")
    if name == "shards":
        assert vit("data", "pack", data, tmp_path / "my shards").status == 0
        data = tmp_path / "my shards"
    start = ("--data", data, "--pretrained", "encoder", "--run_dir", "runs/a")
    first = vit("fit", "-c", "probe", *start, *options, *SMALL)
    assert first.status == 0, first.err
    learned = names(vit, "runs/a", "train")
    [*others, on] = printed(first.out)
    assert not any("my_photos" in word for words in [*others, on] for word in words)
    for words in others:
        done = vit(*words[1:])
        assert done.status == 0, (words, done.err)
    second = vit(*on[1:], "--steps", "2", "--run_dir", "runs/b")
    assert second.status == 0, (on, second.err)
    tested = names(vit, "runs/b", "test")
    assert tested and not tested & learned
    runs = [json.loads(Path(run, "summary.json").read_text()) for run in ("runs/a", "runs/b")]
    assert runs[0]["splits"] == runs[1]["splits"]  # images, labels, and names of classes
    for words in printed(second.out):
        done = vit(*words[1:])
        assert done.status == 0, (words, done.err)
    again = vit("test", "runs/b")
    assert again.status == 0 and "note" not in again.err
