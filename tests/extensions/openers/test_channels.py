"""Images that are not RGB, from the command line: trained, tested, classified, exported."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit as package
from tests.command import TINY, Vit
from vit.extensions.formats.convert import convert

EPOCHS = ("--trainer.max_epochs=6", "--data.inputs.mean=null", "--data.inputs.std=null")


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Twelve arrays of 16 bits and five channels per class; another channel is bright in each."""
    root, random = tmp_path / "five", np.random.default_rng(0)
    for channel, name in ((3, "forest"), (4, "water")):
        (root / name).mkdir(parents=True)
        for i in range(12):
            values = random.integers(200, 900, (20, 18, 5))
            values[..., channel] += 20_000
            np.save(root / name / f"{i:02}.npy", values.astype(np.uint16))
    return root


def test_five_channels_are_trained_tested_classified_and_exported(vit: Vit, arrays: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", arrays, *TINY)
    done = vit(*fit, *EPOCHS)
    assert done.status == 2 and "--data.channels N reads .npy" in done.err
    done = vit(*fit, "--data.channels=5")
    assert done.status == 2 and "must be 5 numbers, one per channel" in done.err
    done = vit(*fit, *EPOCHS, "--data.channels=5", "--run_dir=run")
    assert done.status == 0, done.err
    model = json.loads(Path("run/model/config.json").read_text())
    assert model["model"]["in_channels"] == model["preprocess"]["channels"] == 5
    trained = np.stack([np.load(file) for file in sorted(arrays.rglob("*.npy"))]) / 65535
    # val and test are cut from train, and are like it.
    np.testing.assert_allclose(model["preprocess"]["mean"], trained.mean((0, 1, 2)), rtol=0.2)
    done = vit("test", "run", "--json")
    assert json.loads(done.out)["test/acc1"] == 1, done.err
    answers = json.loads(vit("classify", "run", arrays / "water", "--json").out)
    assert [answer["top"][0]["class"] for answer in answers] == ["water"] * 12
    # 8 bits of a value of 16 would be equal for all of these, and so would the answers.
    classifier = package.load("run")
    fine = np.load(arrays / "water" / "00.npy")
    low, high = (classifier.probabilities([fine // 256 * 256 + rest]) for rest in (0, 255))
    assert not torch.equal(low, high)
    expected = classifier.probabilities([fine])
    values = torch.from_numpy(fine.astype("float32") / 65535).permute(2, 0, 1)
    torch.testing.assert_close(classifier.probabilities([values]), expected)
    for to in ("native", "timm", "huggingface"):
        convert("run", to, to)
        torch.testing.assert_close(package.load(to).probabilities([fine]), expected)
    # Another run begins with these weights, and knows how its images are read.
    done = vit(*fit, "--model.pretrained=run", "--trainer.max_epochs=1", "--run_dir=again")
    assert done.status == 2 and "must be 5 numbers" in done.err  # the recipe's mean is for RGB
    once = ("--trainer.max_epochs=1", "--run_dir=again")
    done = vit(*fit, *EPOCHS[1:], "--model.pretrained=run", *once)
    assert done.status == 0 and "(2 of 2 images)" in done.out, done.err


def test_gray_pictures_begin_with_filters_for_rgb(vit: Vit, tmp_path: Path) -> None:
    root = tmp_path / "gray"
    random = np.random.default_rng(0)
    for name, level in (("dark", 0), ("light", 40_000)):
        (root / name).mkdir(parents=True)
        for i in range(8):
            values = random.integers(level, level + 20_000, (16, 16))
            Image.fromarray(values.astype(np.uint16)).save(root / name / f"{i}.png")
    rgb = package.create_model(
        "vit_ti16", num_classes=0, image_size=16, patch_size=8, width=16, depth=1, mlp_dim=32,
        num_heads=1,
    )  # fmt: skip
    from vit.weights.native import save_native

    save_native("rgb", rgb, classes=None, preprocess=None, extra={})
    optimizer = "{class_path: torch.optim.AdamW, init_args: {lr: 0.01}}"
    Path("own.yaml").write_text(f"model: {{optimizer: {optimizer}}}\ntrainer: {{max_epochs: 8}}\n")
    done = vit(
        "fit", "-c", "own.yaml", "--data.root", root, *TINY[1:], "--data.channels=1",
        "--model.pretrained=rgb", "--run_dir=run",
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "input filters from 3 to 1 channels" in done.err
    assert json.loads(vit("test", "run", "--json").out)["test/acc1"] == 1


def test_other_channels_and_nan_in_one_file_end_before_training(vit: Vit, arrays: Path) -> None:
    fit = ("fit", "-c", "cifar10", "--data.root", arrays, *TINY, *EPOCHS[1:], "--data.channels=5")
    fit = (*fit, "--trainer.max_steps=1")
    keep = np.load(arrays / "forest" / "03.npy")
    for number, (values, message) in enumerate(
        [
            (keep[..., :4], "03.npy: its shape is (20, 18, 4), and data.channels=5"),
            (np.where(keep == keep.max(), np.nan, keep), "03.npy: it has values that are NaN"),
        ]
    ):
        np.save(arrays / "forest" / "03.npy", values)
        done = vit(*fit, f"--run_dir=run{number}")
        assert done.status == 2 and message in done.err.splitlines()[-1], done.err
        assert not Path(f"run{number}/metrics.csv").exists()
    skipped = vit(*fit, "--run_dir=run", "--data.loading.on_error=skip")
    assert skipped.status == 0, skipped.err
