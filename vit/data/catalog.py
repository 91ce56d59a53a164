"""Data sets by name: scikit-learn's digits and torchvision's downloads, rows of catalog.json.

The test set is the official one, but of ImageNet, whose test labels are secret, the official val,
which papers report. DTD is the first of its ten partitions. vit/data/find.py cuts val from train if
a data set has none. Shapes: n images, h w pixels.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np

from vit.data.cut import held_out
from vit.data.roots import exists, root_name
from vit.data.sources import ImageSet, PathList, SplitName
from vit.errors import UserError, did_you_mean

Parts = dict[SplitName, ImageSet]


@dataclass(frozen=True)
class Dataset:
    """Row of the catalog."""

    kind: str
    """The class of torchvision.datasets, or digits."""
    num_classes: int
    images: Mapping[SplitName, int]
    """Images of each split, before val is cut from train."""
    arguments: Mapping[SplitName, Mapping[str, str | bool]] = field(default_factory=dict)
    """Arguments of the class, for each split."""
    below: str = ""
    """Folder below that of the downloads."""

    def load(self, folder: Path) -> tuple[list[str], Parts]:
        """Names of the classes, and the images, downloaded to `folder` if need be."""
        if self.kind == "digits":
            classes, parts = _digits()
        else:
            classes, parts = self._downloaded((folder / self.below).absolute())
        if "test" not in parts:  # the same, whatever the user's seed
            whole = parts["train"]
            strata, shares = [classes[n] for n in whole.labels], {"val_fraction": 0.0, "seed": 0}
            train, _, test = held_out(whole.names, strata, test_fraction=0.2, **shares)
            return classes, {"train": whole.select(train), "test": whole.select(test)}
        return classes, parts

    def _downloaded(self, folder: Path) -> tuple[list[str], Parts]:
        parts: Parts = {}
        names: list[str] = []
        for split, options in self.arguments.items():
            data = _download(self.kind, folder, **options)
            parts[split] = _images(data, f"{self.kind.lower()}/{split}", folder)
            classes = getattr(data, "classes", range(10))  # SVHN does not name them
            names = [n[0] if isinstance(n, tuple) else str(n) for n in classes]  # synonyms
        # ImageNet has two cranes: they become "crane (1)" and "crane (2)".
        names = [
            f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name
            for at, name in enumerate(names)
        ]
        return names, parts


_ROWS: dict[str, Any] = json.loads(Path(__file__).with_name("catalog.json").read_text())
CATALOG = {name: Dataset(**row) for name, row in _ROWS.items()}


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
    if not path or not exists(path):
        typed = Path(path or text).absolute()
        hint = did_you_mean(typed.name, [*CATALOG, *(p.name for p in typed.parent.glob("*"))])
        hint = hint or f"; known: {', '.join(sorted(CATALOG))}"
        raise UserError(f"--data {text}: no data set has this name, and no folder or CSV{hint}")
    name = name or root_name(path)
    if not re.fullmatch(r"\w[^/=|]*", name):
        raise UserError(f"--data {text}: {name!r} cannot name its folder; use NAME={path}")
    place = Path(path).expanduser()
    return name, str(place) if place.exists() else path


def _digits() -> tuple[list[str], Parts]:
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    # Intensities 0 to 16 to the full range of 8 bits.
    pixels = np.rint(bunch.images * (255 / 16))
    names = [str(name) for name in bunch.target_names]
    return names, {"train": _numbered("digits", pixels, bunch.target)}


def _download(name: str, folder: Path, **options: str | bool) -> object:
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


def _images(data: object, name: str, folder: Path) -> ImageSet:
    """Pixels or files, some of which torchvision lists in private attributes."""
    values = vars(data)
    labels = next(values[key] for key in ("targets", "labels", "_labels") if key in values)
    if (pixels := values.get("data")) is not None:
        planes = pixels.shape[1] == 3  # `n 3 h w`
        return _numbered(name, pixels.transpose(0, 2, 3, 1) if planes else pixels, labels)
    files = values.get("_images") or values.get("_image_files")
    files = files or [path for path, _ in values["samples"]]
    names = [Path(path).absolute().relative_to(folder).as_posix() for path in files]
    return ImageSet(PathList(names, str(folder)), np.asarray(labels, np.int64), PathList(names))


def _numbered(name: str, pixels: np.ndarray, labels: np.ndarray) -> ImageSet:
    return ImageSet(
        items=np.ascontiguousarray(pixels, dtype=np.uint8),
        labels=np.asarray(labels, dtype=np.int64),
        names=PathList(f"{name}/{index}" for index in range(len(pixels))),
    )
