"""A data set of the catalog, complete and with a val split of its own or cut from train."""

import os
from collections import Counter
from pathlib import Path

from vit.cache import cache_directory
from vit.data.catalog import CATALOG, Dataset, Parts, list_datasets
from vit.data.sources import PathList, Splits, cut, missing_files
from vit.errors import UserError, did_you_mean, some_of


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
        folder = cache_directory() / "data"
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
                files = some_of((repr(part.items[index]) for index in missing), 1)
                raise UserError(f"{title} is incomplete, {files} do not exist; {advice}")


def _unique(classes: list[str]) -> list[str]:
    """ImageNet has two cranes: the second of a name gets a number."""
    total, seen = Counter(classes), Counter()
    names = []
    for name in classes:
        seen[name] += 1
        names.append(f"{name} ({seen[name]})" if total[name] > 1 else name)
    return names
