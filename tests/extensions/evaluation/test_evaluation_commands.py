"""vit fewshot, knn and probe: what they print, that each option counts, and what they refuse."""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.command import CLASSES, TINY, Vit, saved
from vit.data.find import find_splits
from vit.data.folder import load_folder
from vit.data.settings import Columns, Loading, Reading, Splitting
from vit.errors import UserError
from vit.extensions.evaluation.attentive import attentive_accuracy
from vit.extensions.evaluation.cli_frozen import bench_parser, open_bench
from vit.extensions.evaluation.features import found_layer
from vit.extensions.evaluation.fewshot import few_shot_accuracy
from vit.extensions.evaluation.frozen import Bench
from vit.extensions.evaluation.knn import knn_accuracy
from vit.extensions.evaluation.probe import probe_accuracy
from vit.inference.classifier import load
from vit.models.zoo import model_config

WITHOUT_VAL = Reading(cut=Splitting(val_fraction=0.0))
COMMANDS = ("fewshot", "knn", "probe")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """With a tanh layer before its head."""
    return saved(tmp_path / "model", representation_size=12)


def features(model: Path, photos: Path, tanh: bool, reading: Reading = WITHOUT_VAL) -> Any:
    """And labels, of train and test, without val; image by image, in float64."""
    classifier, parts = load(model), []
    splits = find_splits(None, str(photos), reading)
    for split in ("train", "test"):
        images, rows = splits.get(split), []
        for path in images.items:
            batch = torch.stack([classifier.preprocess(Image.open(path).convert("RGB"))])
            with torch.no_grad():
                tokens = classifier.model.features(classifier.preprocess.normalize(batch))
                pooled = classifier.model.pool(tokens)
                rows.append(classifier.model.pre_logits(pooled) if tanh else pooled)
        parts.append((torch.cat(rows).double().numpy(), images.labels))
    return parts[0], parts[1]


def result(vit: Vit, *args: object) -> dict:
    done = vit(*args, "--json", "--num-workers", 0)
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_each_command_scores_the_models_features(vit: Vit, model: Path, photos: Path) -> None:
    """By the classifiers that tests/evaluation compares with other sources."""
    train, test = features(model, photos, tanh=True)
    shots = result(vit, "fewshot", model, "--data", photos, "--shots", 2, 5)
    expected = few_shot_accuracy(train, test, CLASSES, shots=(2, 5), seeds=range(3))
    for row, (count, draws) in zip(shots["rows"], expected.items(), strict=True):
        assert (row["shots"], row["accuracies"]) == (count, pytest.approx(draws))
        assert row["mean"] == pytest.approx(statistics.fmean(draws))
        assert row["std"] == pytest.approx(statistics.stdev(draws))
    assert (shots["features"], shots["split"], shots["classes"]) == ("pre_logits", "test", 3)
    assert [shots["train_images"], shots["test_images"]] == [len(train[1]), len(test[1])]
    assert shots["image_size"] == [16, 16] and shots["seeds"] == [0, 1, 2]
    near = result(vit, "knn", model, "--data", photos, "--k", 3, 30)
    expected = knn_accuracy(*features(model, photos, tanh=False), 3, ks=(3, 30))
    assert {row["k"]: row["accuracy"] for row in near["rows"]} == pytest.approx(expected)
    assert near["features"] == "pooled" and near["temperature"] == 0.07
    probe = result(vit, "probe", model, "--data", photos, "--num-c", 3)
    expected = probe_accuracy(train, test, 3, num_c=3)
    assert (probe["c"], probe["accuracy"]) == pytest.approx((expected.chosen, expected.accuracy))
    assert [row["c"] for row in probe["sweep"]] == pytest.approx([1e-6, 10**-0.5, 1e5])
    assert probe["chosen_on"] == "10% of train" and probe["kind"] == "logistic"


def test_test_and_val_are_whole_groups(vit: Vit, model: Path, photos: Path) -> None:
    paths = [path.relative_to(photos) for path in sorted(photos.rglob("*.jpg"))]
    groups = [f"{path.parent.name} {int(path.stem) // 3}" for path in paths]
    lines = [f"{p},{p.parent.name},{g}" for p, g in zip(paths, groups, strict=True)]
    (photos / "list.csv").write_text("\n".join(["path,label,video", *lines]))
    args = ("probe", model, "--data", photos / "list.csv", "--num-c", 3)
    assert "column 'video' is not used; if one has several" in vit(*args).err
    found = result(vit, *args, "--group", "video")
    reading = Reading(cut=Splitting(val_fraction=0.0), columns=Columns(group="video"))
    train, test = features(model, photos / "list.csv", True, reading)
    whole = find_splits(None, str(photos / "list.csv"), reading).train.groups
    expected = probe_accuracy(train, test, 3, num_c=3, groups=whole)
    assert [row["accuracy"] for row in found["sweep"]] == [*expected.sweep.values()]
    assert found["accuracy"] == expected.accuracy
    assert found["test_images"] == len(test[1]) and len(test[1]) % 3 == 0


def test_the_attentive_probe_takes_patches_in_float16(vit: Vit, model: Path, photos: Path) -> None:
    found = result(vit, "probe", model, "--data", photos, "--kind", "attentive")
    network, sets = load(model), []
    splits = load_folder(photos, Reading(cut=Splitting(val_fraction=0.0)))
    for split in ("train", "test"):
        images = splits.get(split)
        pixels = [network.preprocess(Image.open(p).convert("RGB")) for p in images.items]
        with torch.no_grad():
            tokens = network.model.features(network.preprocess.normalize(torch.stack(pixels)))
        sets.append((tokens[:, 1:].half().numpy(), images.labels))
    expected = attentive_accuracy(sets[0], sets[1], 3, 2)
    assert (found["rate"], found["accuracy"]) == (expected.chosen, expected.accuracy)
    assert {row["rate"]: row["accuracy"] for row in found["sweep"]} == expected.sweep
    assert (found["kind"], found["features"]) == ("attentive", "patches")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--num-c", 3), "--num-c 3: the attentive probe has no C"),
        (("--engine", "openvino"), "patches are computed by PyTorch"),
    ],
)
def test_what_the_attentive_probe_cannot_use_is_refused(
    args: tuple, message: str, vit: Vit, model: Path, photos: Path
) -> None:
    done = vit("probe", model, "--data", photos, "--kind", "attentive", *args)
    assert done.status == 2 and message in done.err and len(done.err.splitlines()) == 1


def test_a_resnet_has_no_patches_to_attend_to() -> None:
    with pytest.raises(UserError, match="a ResNet has no patches"):
        found_layer(model_config("bit_r50x1"), "patches")


def split(photos: Path, *names: str) -> None:
    """Puts the twelve images of a class into split folders, in turn."""
    for folder in [path for path in photos.iterdir() if path.is_dir()]:
        for i, file in enumerate(sorted(folder.iterdir())):
            target = photos / names[i % len(names)] / folder.name
            target.mkdir(parents=True, exist_ok=True)
            shutil.move(file, target / file.name)
        folder.rmdir()


def test_val_chooses_and_is_measured_on_without_test(vit: Vit, model: Path, photos: Path) -> None:
    split(photos, "train", "val", "test")
    found = result(vit, "probe", model, "--data", photos, "--num-c", 2)
    assert (found["chosen_on"], found["split"]) == ("val", "test")
    assert (found["train_images"], found["test_images"]) == (24, 12)  # train and val are 12 each
    shutil.rmtree(photos / "test")
    for command in COMMANDS:
        done = vit(command, model, "--data", photos, "--num-workers", 0)
        assert done.status == 0 and "val accuracy on my photos" in done.out
        assert "train 12, val 12; measured on val" in done.err


def open_with(model: Path, *args: object) -> Bench:
    parser = bench_parser("knn", "")
    return open_bench(parser.parse_args([str(model), *map(str, args)]), "pooled")


def test_options_reach_data_and_model(vit: Vit, model: Path, photos: Path, tmp_path: Path) -> None:
    plain = open_with(model, "--data", photos)
    assert (plain.data.batch_size, plain.data.loading) == (64, Loading())
    assert plain.data.preprocess.to_dict() == load(model).preprocess.to_dict()
    assert plain.frozen.extractor.precision == "float32"
    bench = open_with(
        model, "--data", "digits", "--data-dir", tmp_path / "d", "--batch-size", 7,
        "--num-workers", 0, "--on-error", "skip", "--image-size", 24, 16, "--resize", "squash",
        "--crop-fraction", 0.5, "--precision", "float64", "--device", "cpu",
    )  # fmt: skip
    data, preprocess = bench.data, bench.data.preprocess
    assert (data.dataset, data.data_dir, bench.name) == ("digits", str(tmp_path / "d"), "digits")
    assert (data.batch_size, data.loading) == (7, Loading(num_workers=0, on_error="skip"))
    assert (preprocess.image_size, preprocess.resize) == ((24, 16), "squash")
    assert preprocess.crop_fraction == 0.5 and data.image_size == (24, 16)
    assert next(bench.frozen.extractor.model.parameters()).dtype == torch.float64
    assert bench.frozen.extractor.device == bench.frozen.solver_device == "cpu"
    assert open_with(model, "--data", photos, "--image-size", 24).data.image_size == (24, 24)


def test_features_are_kept_unless_asked_not_to(
    vit: Vit, model: Path, photos: Path, tmp_path: Path
) -> None:
    def how(*options: object) -> list[str]:
        done = vit("knn", model, "--data", photos, "--num-workers", 0, *options)
        assert done.status == 0
        lines = [line for line in done.err.splitlines() if " images, 24 features, " in line]
        return [line.split("features, ")[1].split(" in ")[0] for line in lines]

    computed, read = ["computed"] * 2, ["from the cache"] * 2
    assert how("--no-cache") == how("--no-cache") == computed
    assert how() == computed and how() == read
    elsewhere = tmp_path / "kept" / "here"
    assert how("--cache", elsewhere) == computed and how("--cache", elsewhere) == read
    assert len(list(elsewhere.glob("*.safetensors"))) == 2
    assert how("--cache", elsewhere, "--no-cache") == computed


def test_unreadable_images_are_named_or_counted(vit: Vit, model: Path, photos: Path) -> None:
    (photos / "red" / "03.jpg").write_bytes(b"")
    refused = vit("knn", model, "--data", photos, "--num-workers", 0)
    assert refused.status == 2 and refused.err.count("03.jpg") == 1
    done = vit("knn", model, "--data", photos, "--num-workers", 0, "--on-error", "skip")
    assert done.status == 0 and "1 unreadable images left out" in done.err


def test_a_run_is_a_model_also_before_its_end(vit: Vit, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit = vit(
        "fit", "-c", "finetune", "--data.root", photos, "--run_dir", run, *TINY,
        "--trainer.max_steps=2", "--final_split=none", "--model.pretrained=null",
    )  # fmt: skip
    assert fit.status == 0, fit.err
    ended = result(vit, "knn", run, "--data", photos, "--k", 2)
    shutil.rmtree(run / "model")
    assert result(vit, "knn", run, "--data", photos, "--k", 2) == ended


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("knn", "model", "--data", "digits,svhn"), "give one data set"),
        (("knn", "nowhere", "--data", "digits"), "no file or directory 'nowhere'"),
        (("fewshot", "model", "--data", "my photos", "--shots", "5", "20"),
         "class 'blue' has 11 training images, 20 shots want 20 (3 classes have fewer)"),
        (("fewshot", "model", "--data", "my photos", "--seeds", "0"), "--seeds: 0 is not"),
        (("knn", "model", "--data", "my photos", "--image-size", "8", "8", "8"),
         "--image-size 8 8 8: give one side"),
        (("knn", "model", "--data", "my photos", "--device", "abacus"),
         "--device abacus cannot be used"),
        (("knn", "model", "--data", "my photos", "--cache", "my photos/red/00.jpg/x"),
         "--cache"),
        (("knn", "model", "--data", "several.csv"), "several labels per image"),
        (("knn", "model", "--data", "scarce.csv"), "neither test nor val images"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    vit: Vit, model: Path, photos: Path, tmp_path: Path, args: tuple[str, ...], message: str
) -> None:
    two = [f"my photos/{name}/0{i}.jpg,{name}|dark" for name in ("red", "blue") for i in range(5)]
    one = ["my photos/red/00.jpg,red", "my photos/blue/00.jpg,blue"]  # nothing can be cut
    for name, lines in (("several.csv", two), ("scarce.csv", one)):
        (tmp_path / name).write_text("\n".join(["path,label", *lines]))
    done = vit(*args)
    assert done.status == 2 and done.out == ""
    assert message in done.err.splitlines()[-1] and "Traceback" not in done.err
