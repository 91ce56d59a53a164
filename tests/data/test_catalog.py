import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets
from PIL import Image
from scipy.io import savemat
from sklearn.datasets import load_digits
from torchvision.datasets import cifar, flowers102, imagenet, stl10, svhn

from vit.data import catalog
from vit.data.catalog import CATALOG
from vit.data.find import load_dataset
from vit.data.module import ImageData
from vit.data.settings import Reading, Splitting
from vit.data.sources import ImageSet, PathList, Splits
from vit.errors import UserError
from vit.extensions.compute.table6 import ACCURACIES, column_of
from vit.extensions.transfer.protocols import PAPER
from vit.recipes import list_recipes, read_options

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the right names are taken for the right files; any download fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("<urlopen error [Errno -3] Temporary failure in name resolution>")

    for module in (cifar, flowers102, imagenet, stl10, svhn):
        monkeypatch.setattr(module, "check_integrity", lambda path, *_: Path(path).is_file())
    for name in ("cifar", "stl10", "oxford_iiit_pet", "dtd", "food101", "eurosat", "flowers102"):
        module = getattr(torchvision.datasets, name)
        monkeypatch.setattr(module, "download_and_extract_archive", refuse)
    # This one is called for files that are there, too.
    monkeypatch.setattr(
        svhn, "download_url", lambda url, root, name, _: Path(root, name).is_file() or refuse()
    )


def load(
    monkeypatch: pytest.MonkeyPatch, name: str, folder: Path, num_images: int, **options: Any
) -> Splits:
    small = replace(catalog.CATALOG[name], images={"train": num_images})
    monkeypatch.setitem(catalog.CATALOG, name, small)
    return load_dataset(name, Reading(cut=Splitting(**options)), data_dir=folder)


def sizes(splits: Splits) -> list[int]:
    return [len(part) for part in (splits.train, splits.val, splits.test) if part is not None]


def jpeg(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def paths(images: ImageSet | None) -> list[str]:
    assert images is not None and isinstance(images.items, PathList)
    return sorted(images.items)


def test_every_column_of_the_paper_has_its_data_set():
    columns = [column_of([name]) for name in PAPER if name in catalog.CATALOG]
    assert len(columns) == len(set(columns)) == len(PAPER)
    assert set(columns) == set(ACCURACIES) - {"real"}  # ImageNet's images with other labels


def test_the_help_names_every_data_set():
    assert ImageData.__doc__ is not None
    assert f"if need be: {', '.join(catalog.CATALOG)}." in " ".join(ImageData.__doc__.split())


MEAN_STD = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}


def test_recipes_normalise_a_data_set_by_its_own_mean_and_std():
    stated = set()
    for recipe, path in list_recipes().items():
        data = read_options(path).get("data") or {}
        inputs = data.get("inputs") or {}
        if "dataset" in data and "mean" in inputs:
            values = tuple(inputs["mean"]), tuple(inputs["std"])
            assert values == MEAN_STD[data["dataset"]], recipe
            stated.add(data["dataset"])
    assert stated == MEAN_STD.keys()


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(UserError, match=r"unknown dataset 'cifar-10' .*; did you mean 'cifar10'"):
        load_dataset("cifar-10", Reading())


def test_digits_are_those_of_scikit_learn_at_full_range():
    splits, row = load_dataset("digits", Reading()), catalog.CATALOG["digits"]
    assert splits.classes == [str(digit) for digit in range(10)]
    assert row.num_classes == 10 and row.images == {"train": 1438, "test": len(splits.test or ())}
    source: Any = load_digits()
    total = 0
    for images in (splits.train, splits.val, splits.test):
        assert images is not None and isinstance(images.items, np.ndarray)
        total += len(images)
        for pixels, label, name in zip(images.items, images.labels, images.names, strict=True):
            index = int(name.removeprefix("digits/"))
            assert np.abs(pixels / 255 - source.images[index] / 16).max() < 0.5 / 255 + 1e-9
            assert label == source.target[index]
    assert total == 1797
    assert splits.test is not None and abs(len(splits.val or ()) / 1438 - 0.1) < 0.005
    shares = np.bincount(splits.test.labels) / np.bincount(source.target)
    assert np.abs(shares - 0.2).max() < 0.01


def write_cifar(folder: Path, kind: type[torchvision.datasets.CIFAR10], classes: int) -> None:
    folder = folder / kind.base_folder
    folder.mkdir(parents=True)
    key = "labels" if classes == 10 else "fine_labels"
    for number, (name, _) in enumerate(kind.train_list + kind.test_list):
        data = np.zeros((20, 3, 32, 32), dtype=np.uint8)
        data[:, 1, 2, 3] = 7 + number
        entry = {"data": data.reshape(20, -1), key: [index % classes for index in range(20)]}
        (folder / name).write_bytes(pickle.dumps(entry))
    names = {kind.meta["key"]: [f"name {index}" for index in range(classes)]}
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps(names))


@pytest.mark.parametrize(
    ("name", "kind", "classes", "num_train"),
    [
        ("cifar10", torchvision.datasets.CIFAR10, 10, 100),
        ("cifar100", torchvision.datasets.CIFAR100, 100, 20),
    ],
)
def test_cifar_has_its_official_test_set(name, kind, classes, num_train, tmp_path, monkeypatch):
    write_cifar(tmp_path, kind, classes)
    fraction = 0.1 if classes == 10 else 0.0
    splits = load(monkeypatch, name, tmp_path, num_train + 20, val_fraction=fraction)
    assert splits.classes == [f"name {index}" for index in range(classes)]
    assert splits.test is not None and isinstance(splits.test.items, np.ndarray)
    assert splits.test.items.shape == (20, 32, 32, 3) and splits.test_origin == "given"
    # Row 2, column 3, green: the layout is height, width, channel.
    assert set(splits.test.items[:, 2, 3, 1]) == {7 + len(kind.train_list)}
    assert splits.test.labels.tolist() == [index % classes for index in range(20)]
    assert sizes(splits) == ([90, 10, 20] if classes == 10 else [20, 20])


def test_svhn_reads_matlab_files(tmp_path, monkeypatch):
    for split, count in (("train", 40), ("test", 10)):
        (tmp_path / "svhn").mkdir(exist_ok=True)
        pixels = np.zeros((32, 32, 3, count), np.uint8)
        pixels[2, 3, 1] = 9
        labels = np.array([[index % 10 + 1] for index in range(count)])
        savemat(tmp_path / "svhn" / f"{split}_32x32.mat", {"X": pixels, "y": labels})
    splits = load(monkeypatch, "svhn", tmp_path, 50)
    assert splits.test is not None and isinstance(splits.test.items, np.ndarray)
    assert sizes(splits) == [30, 10, 10] and splits.classes == list("0123456789")
    assert set(splits.test.items[:, 2, 3, 1]) == {9}
    # The files call the digit 0 "10".
    assert splits.test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]


def test_stl10_reads_column_major_images(tmp_path, monkeypatch):
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for split, count in (("train", 20), ("test", 10)):
        pixels = np.zeros((count, 3, 96, 96), np.uint8)
        pixels[:, 1, 3, 2] = 9  # channel, column, row
        pixels.tofile(folder / f"{split}_X.bin")
        (np.arange(count, dtype=np.uint8) % 10 + 1).tofile(folder / f"{split}_y.bin")
    (folder / "unlabeled_X.bin").touch()
    (folder / "class_names.txt").write_text("\n".join(f"c{index}" for index in range(10)))
    splits = load(monkeypatch, "stl10", tmp_path, 30)
    assert splits.test is not None and isinstance(splits.test.items, np.ndarray)
    assert splits.test.items.shape == (10, 96, 96, 3)
    assert set(splits.test.items[:, 2, 3, 1]) == {9}
    assert splits.classes[3] == "c3" and splits.test.labels.tolist() == list(range(10))


def write_pets(folder: Path) -> None:
    base = folder / "oxford-iiit-pet"
    (base / "annotations").mkdir(parents=True)
    for split, count in (("trainval", 4), ("test", 2)):
        lines = []
        for label, breed in ((1, "Abyssinian"), (2, "great_dane")):
            for index in range(count):
                name = f"{breed}_{split}{index}"
                jpeg(base / "images" / f"{name}.jpg")
                lines.append(f"{name} {label} 1 1")
        (base / "annotations" / f"{split}.txt").write_text("\n".join(lines))


def test_pets_cut_val_from_trainval(tmp_path, monkeypatch):
    write_pets(tmp_path)
    splits = load(monkeypatch, "oxford_iiit_pet", tmp_path, 12)
    assert splits.classes == ["Abyssinian", "Great Dane"] and sizes(splits) == [6, 2, 4]
    assert all("_test" in path for path in paths(splits.test))
    assert all("_trainval" in path for path in paths(splits.train) + paths(splits.val))
    assert splits.test is not None
    assert splits.test.names[0] == "oxford-iiit-pet/images/Abyssinian_test0.jpg"


def test_an_interrupted_download_is_an_error_that_says_what_to_delete(tmp_path, monkeypatch):
    write_pets(tmp_path)
    with pytest.raises(UserError, match=r"has 12 images on disk, not 7,349; delete its files in"):
        load_dataset("oxford_iiit_pet", Reading(), data_dir=tmp_path)
    (tmp_path / "oxford-iiit-pet" / "images" / "great_dane_test1.jpg").unlink()
    with pytest.raises(UserError, match="has 11 images on disk, not 12"):
        load(monkeypatch, "oxford_iiit_pet", tmp_path, 12)


def test_dtd_and_food101_read_their_lists(tmp_path, monkeypatch):
    dtd, food = tmp_path / "dtd" / "dtd", tmp_path / "food-101"
    (dtd / "labels").mkdir(parents=True)
    (food / "meta").mkdir(parents=True)
    for split in ("train", "val", "test"):
        names = [f"{name}/{split}_{name}.jpg" for name in ("banded", "woven")]
        (dtd / "labels" / f"{split}1.txt").write_text("\n".join(names))
        listed = {name: [f"{name}/{split}{index}" for index in range(3)] for name in ("b", "a")}
        (food / "meta" / f"{split}.json").write_text(json.dumps(listed))
        for path in [dtd / "images" / name for name in names]:
            jpeg(path)
        for path in [food / "images" / f"{name}.jpg" for part in listed.values() for name in part]:
            jpeg(path)
    splits = load(monkeypatch, "dtd", tmp_path, 6)
    assert splits.classes == ["banded", "woven"] and sizes(splits) == [2, 2, 2]
    assert (splits.val_origin, splits.test_origin) == ("given", "given")
    for split, images in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
        assert all(f"/{split}_" in path for path in paths(images))
    splits = load(monkeypatch, "food101", tmp_path, 12)
    assert splits.classes == ["a", "b"] and sizes(splits) == [4, 2, 6]
    for path, label in zip(splits.train.items, splits.train.labels, strict=True):
        assert Path(str(path)).parent.name == splits.classes[label]


def test_flowers_have_names_and_three_splits(tmp_path, monkeypatch):
    base = tmp_path / "flowers-102"
    for number in range(1, 7):
        jpeg(base / "jpg" / f"image_{number:05d}.jpg")
    savemat(base / "imagelabels.mat", {"labels": np.array([1, 102, 1, 102, 1, 102])})
    savemat(base / "setid.mat", {"trnid": [1, 2], "valid": [3, 4], "tstid": [5, 6]})
    splits = load(monkeypatch, "flowers102", tmp_path, 6)
    assert len(splits.classes) == 102 and splits.classes[0] == "pink primrose"
    assert splits.train.labels.tolist() == [0, 101]
    assert [Path(path).name for path in paths(splits.test)] == [
        "image_00005.jpg",
        "image_00006.jpg",
    ]


def test_eurosat_gets_a_test_split_that_ignores_the_seed(tmp_path, monkeypatch):
    for name in ("Forest", "River"):
        for index in range(20):
            jpeg(tmp_path / "eurosat" / "2750" / name / f"{name}_{index}.jpg")
    one = load(monkeypatch, "eurosat", tmp_path, 40)
    two = load_dataset("eurosat", Reading(cut=Splitting(seed=5)), data_dir=tmp_path)
    assert one.classes == ["Forest", "River"] and sizes(one) == [28, 4, 8]
    assert paths(one.test) == paths(two.test) and paths(one.val) != paths(two.val)


def test_imagenet_tests_on_the_official_val_and_takes_the_first_synonym(tmp_path, monkeypatch):
    import torch

    folder = tmp_path / "imagenet"
    names = {
        "n01": ("tench", "Tinca tinca"),
        "n02": ("crane",),
        "n03": ("crane",),
    }
    for wnid in names:
        for index in range(4):
            jpeg(folder / "train" / wnid / f"{index}.JPEG")
        jpeg(folder / "val" / wnid / "9.JPEG")
    torch.save((names, ["n01"]), folder / "meta.bin")
    splits = load(monkeypatch, "imagenet", tmp_path, 15)
    assert splits.classes == ["tench", "crane (1)", "crane (2)"]
    assert sizes(splits) == [9, 3, 3]
    assert all("/imagenet/val/" in path for path in paths(splits.test))
    assert all("/imagenet/train/" in path for path in paths(splits.val))


@pytest.mark.parametrize("name", [name for name in sorted(CATALOG) if name != "digits"])
def test_without_files_or_network_the_way_out_is_named(name, tmp_path):
    with pytest.raises(UserError, match=r"use --data\.root FOLDER") as caught:
        load_dataset(name, Reading(), data_dir=tmp_path / "new folder")
    assert "\n" not in str(caught.value) and "new folder" in str(caught.value)
    expected = "ILSVRC2012_img_train.tar" if name == "imagenet" else "name resolution"
    assert expected in str(caught.value)


def test_downloads_go_to_the_users_cache_under_a_lock(own_cache, monkeypatch):
    import filelock

    locked: list[str] = []

    class Lock(filelock.FileLock):
        def acquire(self, *args: Any, **options: Any) -> Any:
            locked.append(str(self.lock_file))
            return super().acquire(*args, **options)

    monkeypatch.setattr(filelock, "FileLock", Lock)
    for folder in (own_cache / "vit", own_cache / "chosen"):
        with pytest.raises(UserError, match=str(folder / "data")):
            load_dataset("cifar10", Reading())
        assert locked.pop() == str(folder / "data" / ".CIFAR10.lock") and not locked
        monkeypatch.setenv("VIT_CACHE", str(own_cache / "chosen"))
