"""vit robustness on generated pictures, and on miniatures of the official layouts."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit as package
from tests.command import CLASSES, TINY, Vit, saved
from vit.data.decode import open_image
from vit.data.sampler import evaluated
from vit.extensions.evaluation.corruptions import KINDS, corrupt
from vit.extensions.evaluation.robustness import ALEXNET
from vit.inference.classifier import load
from vit.preprocessing import Preprocess
from vit.weights.native import save_native

FAST = ("--num-workers", 0, "--device", "cpu")


def document(vit: Vit, *args: object) -> dict[str, Any]:
    done = vit("robustness", *args, *FAST, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def answers(model: Path, pictures: list[np.ndarray]) -> list[int]:
    """The classes of pictures of the model's size, by `vit.load`."""
    classifier = load(model)
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    return classifier.outputs(pixels)[0].argmax(-1).tolist()


def error(answered: list[int], labels: list[int]) -> Any:
    return pytest.approx(np.mean(np.array(answered) != labels))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


@pytest.fixture
def few(photos: Path) -> Path:
    """Six of the pictures."""
    for path in photos.glob("*/*.jpg"):
        if int(path.stem) > 1:
            path.unlink()
    return photos


def test_errors_are_those_of_each_generated_picture_alone(vit: Vit, model: Path, few: Path) -> None:
    found = document(vit, model, "--data", few)
    steps = load(model).preprocess
    paths = sorted(few.glob("*/*.jpg"))
    labels = [CLASSES.index(path.parent.name) for path in paths]
    clean = [steps(Image.open(path)).permute(1, 2, 0).numpy() for path in paths]
    assert found["images"] == 6 and found["clean_error"] == error(answers(model, clean), labels)
    assert [row["kind"] for row in found["rows"]] == [*KINDS]
    for row in found["rows"]:
        assert [*row["errors"]] == ["1", "2", "3", "4", "5"]
        for strength, share in row["errors"].items():
            pictures = [
                corrupt(image, row["kind"], int(strength), key=f"{p.parent.name}/{p.name}")
                for image, p in zip(clean, paths, strict=True)
            ]
            assert share == error(answers(model, pictures), labels)
        assert row["mean_error"] == pytest.approx(sum(row["errors"].values()) / 5)
    assert (found["pictures"], found["numbers_for"], found["seed"]) == ("generated", 32, 0)
    assert "mce" not in found


def test_batches_change_no_error_and_broken_images_are_skipped(
    vit: Vit, model: Path, few: Path
) -> None:
    args = (model, "--data", few, "--limit", 4)
    assert document(vit, *args) == document(vit, *args, "--batch-size", 3)
    first = sorted(few.glob("*/*.jpg"))[0]
    first.write_bytes(b"no picture")
    refused = vit("robustness", model, "--data", few, *FAST)
    assert refused.status == 2 and first.name in refused.err.splitlines()[-1]
    assert document(vit, model, "--data", few, "--on-error", "skip")["images"] == 5
    for path in few.glob("*/*.jpg"):
        path.write_bytes(b"no picture")
    none = vit("robustness", model, "--data", few, *FAST, "--on-error", "skip")
    assert none.status == 2 and "none of the 6 images" in none.err.splitlines()[-1]


def test_another_model_is_the_unit_whatever_the_order_of_its_classes(
    vit: Vit, model: Path, few: Path, tmp_path: Path
) -> None:
    order = [2, 0, 1]
    network: Any = load(model).model
    with torch.no_grad():
        network.head.weight.copy_(network.head.weight[order])
        network.head.bias.copy_(network.head.bias[order])
    steps = load(model).preprocess.to_dict()
    mixed, classes = tmp_path / "mixed", [CLASSES[k] for k in order]
    save_native(mixed, network, classes=classes, preprocess=steps, extra={})
    args = ("--data", few, "--limit", 4)
    found = document(vit, model, *args, "--relative-to", mixed)
    assert found["images"] == 4 and found["relative_to"] == str(mixed)
    assert [row["kind"] for row in found["rows"]] == [*KINDS]
    assert {row["ce"] for row in found["rows"]} == {1.0} and found["mce"] == 1
    table = vit("robustness", model, *args, *FAST, "--relative-to", mixed).out
    assert table.startswith("top-1 error in % on generated pictures: ")
    assert "numbers for 32 pixels, seed 0" in table.splitlines()[0]
    assert table.splitlines()[-1] == f"mCE 100.0: the errors of {mixed} are 100"
    assert len(table.splitlines()) == 2 + 15 + 3


def test_the_test_images_of_a_data_set_by_name_are_corrupted(vit: Vit, tmp_path: Path) -> None:
    digits = saved(tmp_path / "model", [str(k) for k in range(9, -1, -1)])
    found = document(vit, digits, "--data", "digits", "--seed", 7, "--limit", 10)
    images = package.ImageData(dataset="digits").image_set("test")
    places, steps = evaluated(len(images), 10, 0), load(digits).preprocess
    pictures = [steps(open_image(images.items[place])) for place in places]
    clean = answers(digits, [picture.permute(1, 2, 0).numpy() for picture in pictures])
    labels = [9 - images.labels[place] for place in places]  # the outputs are in reverse order
    assert found["clean_error"] == error(clean, labels)
    assert (found["images"], found["seed"]) == (10, 7)


def imagenet_c(root: Path, deeper: str = "") -> dict[tuple[str, int], list[tuple[int, np.ndarray]]]:
    """Six pictures of each kind and strength in folders of classes, as the official ones."""
    random, drawn = np.random.default_rng(0), {}
    for kind in KINDS:
        for strength in range(1, 6):
            pictures = random.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
            drawn[kind, strength] = [*zip([0, 0, 1, 1, 2, 2], pictures, strict=True)]
            for number, (label, picture) in enumerate(drawn[kind, strength]):
                folder = root / deeper / kind / str(strength) / CLASSES[label]
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(folder / f"{number}.png")
    return drawn


def test_imagenet_c_is_read_from_its_folders_and_measured_by_alexnet(
    vit: Vit, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = imagenet_c(tmp_path / "c", "weather")
    other = document(vit, model, "--data", tmp_path / "c")
    assert other["relative_to"] is None and "mce" not in other  # AlexNet had 1,000 classes
    for module in ("imagenet_variants", "robustness"):
        monkeypatch.setattr(f"vit.extensions.evaluation.{module}.NUM_CLASSES", 3)
    names = {name: number for number, name in enumerate(CLASSES)}
    monkeypatch.setattr(
        "vit.extensions.evaluation.imagenet_variants.imagenet_numbers",
        lambda found: [names[name] for name in found],
    )
    for folder in tmp_path.rglob("*"):
        if folder.name in CLASSES:
            folder.rename(folder.with_name(f"n0000000{CLASSES.index(folder.name)}"))
    found = document(vit, model, "--data", tmp_path / "c")
    assert (found["pictures"], found["relative_to"]) == ("ImageNet-C", "AlexNet")
    assert found["images"] == 6 and found["clean_error"] is None and "seed" not in found
    for row in found["rows"]:
        for strength, share in row["errors"].items():
            labels, pictures = zip(*drawn[row["kind"], int(strength)], strict=True)
            assert share == error(answers(model, [*pictures]), [*labels])
        assert row["ce"] == pytest.approx(row["mean_error"] / ALEXNET[row["kind"]][0])
    assert found["mce"] == pytest.approx(np.mean([row["ce"] for row in found["rows"]]))


def test_a_part_of_imagenet_c_is_measured_and_levels_that_lack_images_are_refused(
    vit: Vit, model: Path, tmp_path: Path
) -> None:
    imagenet_c(tmp_path / "c")
    for kind in {*KINDS} - {"fog", "frost"}:
        shutil.rmtree(tmp_path / "c" / kind)
    done = vit("robustness", model, "--data", tmp_path / "c", *FAST)
    assert done.status == 0 and "mean of 2 kinds" in done.out
    next((tmp_path / "c").glob("fog/4/*/0.png")).unlink()
    done = vit("robustness", model, "--data", tmp_path / "c", *FAST)
    assert done.status == 2 and "wrong" not in done.err
    assert "fog 4 has 5 images" in done.err.splitlines()[-1]
    shutil.rmtree(tmp_path / "c" / "fog" / "1")
    done = vit("robustness", model, "--data", tmp_path / "c", *FAST)
    assert done.status == 2 and "fog/1" in done.err.splitlines()[-1]


def cifar_c(root: Path, labels: list[int]) -> np.ndarray:
    root.mkdir()
    pixels = np.random.default_rng(1).integers(0, 256, (5 * len(labels), 32, 32, 3), dtype=np.uint8)
    np.save(root / "fog.npy", pixels)
    np.save(root / "labels.npy", np.array(labels * 5, dtype=np.uint8))
    return pixels


def test_cifar_c_is_read_from_files_in_five_parts(vit: Vit, model: Path, tmp_path: Path) -> None:
    labels = [0, 1, 2, 0, 1, 2, 2]
    pixels = cifar_c(tmp_path / "c", labels)
    found = document(vit, model, "--data", tmp_path / "c")
    assert (found["pictures"], found["relative_to"], found["images"]) == ("CIFAR-C", None, 7)
    steps, [row] = load(model).preprocess, found["rows"]
    for strength in range(1, 6):
        part = pixels[7 * (strength - 1) : 7 * strength]
        pictures = [steps(Image.fromarray(image)).permute(1, 2, 0).numpy() for image in part]
        assert row["errors"][str(strength)] == error(answers(model, pictures), labels)


def test_of_a_runs_own_folder_the_held_out_images_are_corrupted(
    vit: Vit, photos: Path, tmp_path: Path
) -> None:
    args = ("--data", photos, *TINY, "--trainer.max_steps=1", "--run_dir", "run")
    assert vit("fit", "-c", "finetune", "--model.pretrained", "null", *args).status == 0
    found = document(vit, "run", "--data", photos)
    assert found["images"] < 36
    scored = json.loads(vit("test", "run", "--json").out)
    assert found["clean_error"] == pytest.approx(1 - scored["test/acc1"])


def test_mistakes_are_one_line(vit: Vit, model: Path, photos: Path, tmp_path: Path) -> None:
    imagenet_c(tmp_path / "c")
    cifar_c(tmp_path / "many", [0, 1, 2, 3])
    cifar_c(tmp_path / "short", [0, 1, 2])
    np.save(tmp_path / "short" / "fog.npy", np.zeros((14, 32, 32), np.uint8))
    cifar_c(tmp_path / "negative", [0] * 3)
    np.save(tmp_path / "negative" / "labels.npy", np.array([-1, 1, 2] * 5))
    cifar_c(tmp_path / "objects", [0, 1, 2])
    np.save(tmp_path / "objects" / "fog.npy", np.array([{}]), allow_pickle=True)
    network: Any = package.create_model("vit_ti16", num_classes=3, image_size=16, in_channels=1)
    steps = Preprocess(image_size=(16, 16), mean=(0.5,), std=(0.5,), channels=1).to_dict()
    gray = tmp_path / "gray"
    save_native(gray, network, classes=CLASSES, preprocess=steps, extra={})
    other = saved(tmp_path / "other", ["a", "b"])
    for args, message in (
        ((model, "--data", photos, "--limit", 0), "is not a whole number of at least 1"),
        ((model, "--data", photos, "--no-cache"), "unrecognized arguments: --no-cache"),
        ((model, "--data", tmp_path / "c", "--seed", 1), "--seed is for generated pictures"),
        ((model, "--data", tmp_path / "none"), "no data set has this name"),
        ((other, "--data", photos), "has classes that the model lacks"),
        ((model, "--data", photos, "--relative-to", other), "classes that the model lacks: 'blue'"),
        ((other, "--data", tmp_path / "c"), "has classes that the model lacks"),
        ((model, "--data", tmp_path / "many"), "labels from 0 to 3, and the model 3 classes"),
        ((model, "--data", tmp_path / "negative"), "labels from -1 to 2, and the model 3 classes"),
        ((model, "--data", tmp_path / "short"), "cannot read fog.npy and labels.npy"),
        ((model, "--data", tmp_path / "objects"), "cannot read fog.npy and labels.npy"),
        ((gray, "--data", photos), "takes other channels than RGB"),
        ((model,), "--data"),
    ):
        done = vit("robustness", *args, *FAST)
        assert done.status == 2 and done.out == "", (args, done)
        assert message in done.err.splitlines()[-1], done.err
