"""Running the command in this process, in an empty directory; and small folders of pictures."""

import csv
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from jsonschema import Draft202012Validator
from PIL import Image

import vit as package
from vit.cli.main import main
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

CLASSES = ["blue", "grün", "red"]
SCHEMAS = Path(__file__).parents[1] / "docs" / "json"


class Result(NamedTuple):
    status: int
    out: str
    err: str


Vit = Callable[..., Result]


@pytest.fixture
def vit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Vit:
    """vit("fit", "-c", "quickstart") -> status, standard output, standard error.

    What is printed with --json is checked by its schema.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a fit adds the directory

    def run(*args: object) -> Result:
        capsys.readouterr()
        try:
            status = main([str(arg) for arg in args])
        except SystemExit as stop:  # argparse's way out
            status = stop.code if isinstance(stop.code, int) else 1
        out, err = capsys.readouterr()
        if "--json" in args and status == 0 and out:
            name = "data_check" if args[0] == "data" else str(args[0])
            schema(name).validate(json.loads(out))
        return Result(status, out, err)

    return run


@cache
def schema(name: str) -> Draft202012Validator:
    """The schema in docs/json of what a command prints with --json."""
    file = SCHEMAS / f"{name}.schema.json"
    return Draft202012Validator(json.loads(file.read_text(encoding="utf-8")))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve pictures of each of three colours: photos/red/00.jpg, ..."""
    return coloured(tmp_path / "my photos")


def coloured(root: Path) -> Path:
    """What `photos` holds, in a folder that this makes."""
    random = np.random.default_rng(0)
    for channel, name in enumerate(("red", "grün", "blue")):
        (root / name).mkdir(parents=True)
        for i in range(12):
            pixels = random.integers(0, 90, (20 + i, 24, 3))
            pixels[..., channel] += 150
            Image.fromarray(pixels.astype("uint8")).save(root / name / f"{i:02}.jpg")
    return root


def parts(photos: Path, *names: str) -> Path:
    """The twelve pictures of each class in one folder per split, in equal shares."""
    root = Path("split")
    for path in photos.rglob("*.jpg"):
        place = root / names[int(path.stem) * len(names) // 12] / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    return root


def saved(
    folder: Path,
    classes: list[str] | None = CLASSES,
    *,
    extra: Any = None,
    seed: int = 0,
    **sizes: Any,
) -> Path:
    """A ViT of one layer for 16 x 16 pixels, with random weights and a head for the classes."""
    torch.manual_seed(seed)
    usual = {"num_classes": len(classes or ()), "image_size": 16, "patch_size": 8, "depth": 1}
    net: Any = package.create_model("vit_ti16", width=24, mlp_dim=48, num_heads=2, **usual | sizes)
    if classes:
        torch.nn.init.normal_(net.head.weight)
    steps = Preprocess(image_size=(16, 16), crop_fraction=1.0).to_dict()
    save_native(folder, net, classes=classes, preprocess=steps, extra=extra or {})
    return folder


def table(file: Path | str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with open(file, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def logged(run: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, without their times."""
    rows = table(run / "metrics.csv")
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, but for locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# A model small enough that a step takes milliseconds.
TINY = (
    "--model.architecture={patch_size: 8, width: 16, depth: 1, mlp_dim: 32, num_heads: 1}",
    "--data.image_size=16",
    "--data.batch_size=8",
    "--data.loading.num_workers=0",
    "--trainer.precision=32-true",
    "--trainer.accelerator=cpu",
)
