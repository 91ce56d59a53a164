"""Data sets by name: scikit-learn's digits and torchvision's downloads.

The test set is the official one; vit/data/find.py cuts val from train if a data set has none.
Shapes: n images, h w pixels.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.cut import held_out
from vit.data.roots import exists, root_name
from vit.data.sources import ImageSet, PathList, SplitName
from vit.errors import UserError, did_you_mean

Parts = dict[SplitName, ImageSet]
Loader = Callable[[Path], tuple[list[str], Parts]]
Channels = tuple[float, float, float]


@dataclass(frozen=True)
class Dataset:
    """One row of the catalog."""

    images: dict[SplitName, int]
    """Images of each split, before val is cut from train."""
    num_classes: int
    load: Loader
    mean_std: tuple[Channels, Channels] | None = None
    """Mean and deviation of train's red, green and blue in [0, 1], if recipes use them."""


def data_set(text: str) -> tuple[str, str | None]:
    """The name, and the folder, manifest or shards; None for a set of the catalog.

    `text` is a path that exists, shards, a name of the catalog, or NAME=PATH. UserError for
    anything else.
    """
    name, equals, path = text.partition("=")
    if exists(text):
        name, path = "", text
    elif not equals and text in CATALOG:
        return text, None
    place = Path(path).expanduser()
    if not path or not exists(path):
        typed = Path(path or text).absolute()
        hint = did_you_mean(typed.name, [*CATALOG, *(p.name for p in typed.parent.glob("*"))])
        hint = hint or f"; known: {', '.join(sorted(CATALOG))}"
        raise UserError(f"--data {text}: no data set has this name, and no folder or CSV{hint}")
    name = name or root_name(path)
    if not re.fullmatch(r"\w[^/=|]*", name):
        raise UserError(f"--data {text}: {name!r} cannot name its folder; use NAME={path}")
    return name, str(place) if place.exists() else path


def _numbered(name: str, pixels: np.ndarray, labels: Any) -> ImageSet:
    return ImageSet(
        items=np.ascontiguousarray(pixels, dtype=np.uint8),
        labels=np.asarray(labels, dtype=np.int64),
        names=PathList(f"{name}/{index}" for index in range(len(pixels))),
    )


def _hold_out_test(whole: ImageSet, classes: list[str]) -> Parts:
    """The same, whatever the user's seed, of sets without an official test split."""
    strata = [classes[label] for label in whole.labels]
    train, _, test = held_out(whole.names, strata, seed=0, val_fraction=0.0, test_fraction=0.2)
    return {"train": whole.select(train), "test": whole.select(test)}


def _digits(folder: Path) -> tuple[list[str], Parts]:
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # Intensities 0 to 16 to the full range of 8 bits.
    pixels = np.rint(bunch.images * (255 / 16))
    classes = [str(name) for name in bunch.target_names]
    return classes, _hold_out_test(_numbered("digits", pixels, bunch.target), classes)


def _download(name: str, folder: Path, **options: Any) -> Any:
    """A data set of torchvision, downloaded under a lock; UserError if that fails."""
    import torchvision.datasets
    from filelock import FileLock

    if name != "ImageNet":
        options["download"] = True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{name}.lock"):
            return getattr(torchvision.datasets, name)(str(folder), **options)
    # A refused connection is an OSError, a damaged or missing archive a RuntimeError.
    except (OSError, RuntimeError, HTTPException) as error:
        reason = " ".join(str(error).split())
        files = "its files"
        if name == "ImageNet":
            files = "ILSVRC2012_devkit_t12.tar.gz, ILSVRC2012_img_train.tar and _img_val.tar"
        raise UserError(
            f"cannot get {name} into {folder} ({reason}); copy {files} there, or use --data.root "
            "FOLDER with class folders"
        ) from error


def _torchvision(
    kind: str, splits: dict[SplitName, dict[str, Any]], folder: Path, below: str = ""
) -> tuple[list[str], Parts]:
    """A data set of torchvision; `splits` are its arguments."""
    folder = (folder / below).absolute()
    parts: Parts = {}
    classes: Any = ()
    for split, options in splits.items():
        data = _download(kind, folder, **options)
        parts[split] = _images(data, f"{kind.lower()}/{split}", folder)
        classes = classes or getattr(data, "classes", range(10))  # SVHN has no names
    names = [name[0] if isinstance(name, tuple) else str(name) for name in classes]  # synonyms
    # ImageNet has two cranes: they become "crane (1)" and "crane (2)".
    names = [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name
        for at, name in enumerate(names)
    ]
    return names, parts if "test" in parts else _hold_out_test(parts["train"], names)


def _images(data: Any, name: str, folder: Path) -> ImageSet:
    """Pixels or files, some of which torchvision lists in private attributes."""
    labels = [getattr(data, each, None) for each in ("targets", "labels", "_labels")]
    labels = next(found for found in labels if found is not None)
    if hasattr(data, "data"):
        planes = data.data.shape[1] == 3  # `n 3 h w`
        return _numbered(name, data.data.transpose(0, 2, 3, 1) if planes else data.data, labels)
    files = getattr(data, "_images", None) or getattr(data, "_image_files", None)
    files = files or [path for path, _ in data.samples]
    names = [Path(path).absolute().relative_to(folder).as_posix() for path in files]
    return ImageSet(PathList(names, str(folder)), np.asarray(labels, np.int64), PathList(names))


def _named(**splits: str) -> dict[Any, dict[str, Any]]:
    """torchvision's names of our splits as its arguments."""
    return {ours: {"split": theirs} for ours, theirs in splits.items()}


_TRAIN_TEST = _named(train="train", test="test")
_TRAIN_VAL_TEST = _named(train="train", val="val", test="test")
_BOOLEAN: dict[SplitName, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}

CATALOG: dict[str, Dataset] = {
    "digits": Dataset({"train": 1_438, "test": 359}, 10, _digits),
    "cifar10": Dataset(
        {"train": 50_000, "test": 10_000},
        10,
        partial(_torchvision, "CIFAR10", _BOOLEAN),
        mean_std=((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    ),
    "cifar100": Dataset(
        {"train": 50_000, "test": 10_000},
        100,
        partial(_torchvision, "CIFAR100", _BOOLEAN),
    ),
    "svhn": Dataset(
        {"train": 73_257, "test": 26_032},
        10,
        partial(_torchvision, "SVHN", _TRAIN_TEST, below="svhn"),
    ),
    "stl10": Dataset(
        {"train": 5_000, "test": 8_000}, 10, partial(_torchvision, "STL10", _TRAIN_TEST)
    ),
    "eurosat": Dataset(
        {"train": 21_600, "test": 5_400}, 10, partial(_torchvision, "EuroSAT", {"train": {}})
    ),
    "oxford_iiit_pet": Dataset(
        {"train": 3_680, "test": 3_669},
        37,
        partial(_torchvision, "OxfordIIITPet", _named(train="trainval", test="test")),
    ),
    "flowers102": Dataset(
        {"train": 1_020, "val": 1_020, "test": 6_149},
        102,
        partial(_torchvision, "Flowers102", _TRAIN_VAL_TEST),
    ),
    "food101": Dataset(
        {"train": 75_750, "test": 25_250}, 101, partial(_torchvision, "Food101", _TRAIN_TEST)
    ),
    "dtd": Dataset(  # the first of its ten official partitions
        {"train": 1_880, "val": 1_880, "test": 1_880},
        47,
        partial(_torchvision, "DTD", _TRAIN_VAL_TEST),
    ),
    "imagenet": Dataset(
        {"train": 1_281_167, "test": 50_000},
        1_000,
        # The labels of the official test set are secret: papers report the official val.
        partial(_torchvision, "ImageNet", _named(train="train", test="val"), below="imagenet"),
        mean_std=((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ),
}
