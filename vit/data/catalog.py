"""Datasets by name: one table, scikit-learn's digits and torchvision's downloads.

Test figures are made on the official test set; val is cut from train where a dataset has none.
Shapes: n images, h w pixels, k classes.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from vit.cache import cache_directory, cached
from vit.data.sources import (
    ImageSet,
    PathList,
    SplitName,
    Splits,
    cut,
    held_out,
    missing_files,
    shorten,
)
from vit.errors import UserError, did_you_mean

# Sets without an official test split get a fifth of their images, whatever the user's seed, so that
# test figures of different runs can be compared.
_TEST_FRACTION = 0.2
_TEST_SEED = 0

Parts = dict[SplitName, ImageSet]
Loader = Callable[[Path], tuple[list[str], Parts]]


@dataclass(frozen=True)
class Dataset:
    """One row of the catalog."""

    title: str
    num_images: int
    """Of all splits; fewer on disk means an interrupted download."""
    load: Loader
    folder: str
    """What torchvision makes of it below the folder of downloads."""


def list_datasets() -> list[str]:
    """The names that `load_dataset` knows, sorted."""
    return sorted(CATALOG)


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
) -> Splits:
    """The splits of a dataset of the catalog, downloaded to `data_dir` where it is not there yet.

    Several processes may ask at once: one downloads, the others wait at a file lock.

    Args:
        name: One of `list_datasets()`.
        data_dir: Where downloads go; `data` in VIT_CACHE or ~/.cache/vit by default.
        val_fraction: Share of train that becomes val if the dataset has no val of its own.
        seed: Of that cut. Test sets do not depend on it.

    Raises:
        UserError: The name is unknown, or the files are neither there nor can be downloaded.
    """
    if name not in CATALOG:
        known = did_you_mean(name, CATALOG) or f"; known are {', '.join(list_datasets())}"
        raise UserError(f"unknown dataset {name!r} (a folder is given by --data.root){known}")
    dataset = CATALOG[name]
    if data_dir is not None:
        folder = Path(data_dir).expanduser()
    else:
        folder = cached(cache_directory() / "data" / dataset.folder).parent
    classes, parts = dataset.load(folder)
    _check_complete(dataset, parts, folder)
    whole = Splits(
        classes=_unique(classes),
        train=parts["train"],
        val=parts.get("val"),
        test=parts.get("test"),
        val_origin="given" if "val" in parts else "none",
        test_origin="given" if "test" in parts else "none",
    )
    return cut(
        whole,
        list(parts["train"].names),
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=0.0,
        where=name,
    )


def _check_complete(dataset: Dataset, parts: Parts, folder: Path) -> None:
    """torchvision takes any folder for complete, also one left by an interrupted unpacking."""
    title, expected = dataset.title, dataset.num_images
    advice = f"delete its files in {folder} and run again"
    count = sum(len(part) for part in parts.values())
    if count != expected:
        raise UserError(f"{title} has {count:,} images on disk, not {expected:,}; {advice}")
    for part in parts.values():
        if isinstance(part.items, PathList):
            missing = missing_files(part.items)
            if missing:
                files = shorten([part.items[index] for index in missing], limit=1)
                raise UserError(f"{title} is incomplete, {files} do not exist; {advice}")


def _unique(classes: list[str]) -> list[str]:
    """ImageNet has two cranes: the second of a name gets a number."""
    total, seen = Counter(classes), Counter()
    names = []
    for name in classes:
        seen[name] += 1
        names.append(f"{name} ({seen[name]})" if total[name] > 1 else name)
    return names


def _numbered(name: str, pixels: np.ndarray, labels: Any) -> ImageSet:
    return ImageSet(
        items=np.ascontiguousarray(pixels, dtype=np.uint8),
        labels=np.asarray(labels, dtype=np.int64),
        names=PathList(f"{name}/{index}" for index in range(len(pixels))),
    )


def _files(paths: list[Any], labels: Any, root: Path) -> ImageSet:
    root = root.absolute()
    names = [Path(path).absolute().relative_to(root).as_posix() for path in paths]
    return ImageSet(
        items=PathList(names, str(root)),
        labels=np.asarray(labels, dtype=np.int64),
        names=PathList(names),
    )


def _hold_out_test(whole: ImageSet, classes: list[str]) -> Parts:
    train, _, test = held_out(
        list(whole.names),
        [classes[label] for label in whole.labels],
        seed=_TEST_SEED,
        val_fraction=0.0,
        test_fraction=_TEST_FRACTION,
    )
    return {"train": whole.select(train), "test": whole.select(test)}


def _digits(folder: Path) -> tuple[list[str], Parts]:
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # Intensities 0 to 16 to the full range of 8 bits.
    pixels = np.rint(bunch.images * (255 / 16))
    classes = [str(name) for name in bunch.target_names]
    return classes, _hold_out_test(_numbered("digits", pixels, bunch.target), classes)


def _download(name: str, folder: Path, **options: Any) -> Any:
    """A torchvision dataset, downloaded under a lock; its errors become one line."""
    import torchvision.datasets
    from filelock import FileLock

    kind = getattr(torchvision.datasets, name)
    if name != "ImageNet":
        options["download"] = True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{name}.lock"):
            return kind(str(folder), **options)
    # A refused connection is an OSError, a damaged or missing archive a RuntimeError.
    except (OSError, RuntimeError, HTTPException) as error:
        reason = " ".join(str(error).split())
        way_out = "with a network run again, without one copy its files there"
        if name == "ImageNet":
            way_out = (
                "put ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and "
                "ILSVRC2012_img_val.tar there (image-net.org asks for an account)"
            )
        raise UserError(
            f"cannot get {name} into {folder} ({reason}); {way_out}, "
            "or use --data.root FOLDER with class folders"
        ) from error


def _cifar(name: str, folder: Path) -> tuple[list[str], Parts]:
    train, test = _download(name, folder, train=True), _download(name, folder, train=False)
    lower = name.lower()
    return list(train.classes), {
        "train": _numbered(f"{lower}/train", train.data, train.targets),
        "test": _numbered(f"{lower}/test", test.data, test.targets),
    }


def _svhn(folder: Path) -> tuple[list[str], Parts]:
    parts: Parts = {}
    for split in _TRAIN_TEST:
        data = _download("SVHN", folder / "svhn", split=split)
        parts[split] = _numbered(f"svhn/{split}", data.data.transpose(0, 2, 3, 1), data.labels)
    return [str(digit) for digit in range(10)], parts


def _stl10(folder: Path) -> tuple[list[str], Parts]:
    parts: Parts = {}
    classes: list[str] = []
    for split in _TRAIN_TEST:
        data = _download("STL10", folder, split=split)
        classes = list(data.classes)
        parts[split] = _numbered(f"stl10/{split}", data.data.transpose(0, 2, 3, 1), data.labels)
    return classes, parts


def _listed(name: str, folder: Path, splits: dict[SplitName, str]) -> tuple[list[str], Parts]:
    """Datasets of which torchvision keeps the list of files to itself."""
    parts: Parts = {}
    classes: list[str] = []
    for ours, theirs in splits.items():
        data = _download(name, folder, split=theirs)
        paths = data._images if name == "OxfordIIITPet" else data._image_files
        if ours == "train":
            classes = list(data.classes)
        parts[ours] = _files(paths, data._labels, folder)
    return classes, parts


def _eurosat(folder: Path) -> tuple[list[str], Parts]:
    data = _download("EuroSAT", folder)
    paths, labels = zip(*data.samples, strict=True)
    classes = list(data.classes)
    return classes, _hold_out_test(_files(list(paths), labels, folder), classes)


def _imagenet(folder: Path) -> tuple[list[str], Parts]:
    folder = folder / "imagenet"
    parts: Parts = {}
    classes: list[str] = []
    # The labels of the official test set are secret: papers report the official val.
    splits: dict[SplitName, str] = {"train": "train", "test": "val"}
    for ours, theirs in splits.items():
        data = _download("ImageNet", folder, split=theirs)
        classes = [synonyms[0] for synonyms in data.classes]
        paths, labels = zip(*data.samples, strict=True)
        parts[ours] = _files(list(paths), labels, folder)
    return classes, parts


_TRAIN_TEST: dict[SplitName, str] = {"train": "train", "test": "test"}
_TRAIN_VAL_TEST: dict[SplitName, str] = {"train": "train", "val": "val", "test": "test"}
_TRAINVAL_TEST: dict[SplitName, str] = {"train": "trainval", "test": "test"}

CATALOG: dict[str, Dataset] = {
    "digits": Dataset("Digits of scikit-learn", 1_797, _digits, "digits"),
    "cifar10": Dataset("CIFAR-10", 60_000, partial(_cifar, "CIFAR10"), "cifar-10-batches-py"),
    "cifar100": Dataset("CIFAR-100", 60_000, partial(_cifar, "CIFAR100"), "cifar-100-python"),
    "svhn": Dataset("SVHN", 99_289, _svhn, "svhn"),
    "stl10": Dataset("STL-10", 13_000, _stl10, "stl10_binary"),
    "eurosat": Dataset("EuroSAT", 27_000, _eurosat, "eurosat"),
    "oxford_iiit_pet": Dataset(
        "Oxford-IIIT Pet",
        7_349,
        partial(_listed, "OxfordIIITPet", splits=_TRAINVAL_TEST),
        "oxford-iiit-pet",
    ),
    "flowers102": Dataset(
        "Oxford 102 Flower",
        8_189,
        partial(_listed, "Flowers102", splits=_TRAIN_VAL_TEST),
        "flowers-102",
    ),
    "food101": Dataset(
        "Food-101", 101_000, partial(_listed, "Food101", splits=_TRAIN_TEST), "food-101"
    ),
    # The first of its ten official partitions.
    "dtd": Dataset(
        "Describable Textures", 5_640, partial(_listed, "DTD", splits=_TRAIN_VAL_TEST), "dtd"
    ),
    "imagenet": Dataset("ImageNet-1k", 1_331_167, _imagenet, "imagenet"),
}
