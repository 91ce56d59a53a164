"""From what a user names, a data set or files, to its splits; nothing is decoded."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cache import cache_directory
from vit.data.addresses import check_root, find_shards, is_tar
from vit.data.catalog import CATALOG
from vit.data.cut import complete
from vit.data.folder import load_folder
from vit.data.manifest import SUFFIXES, load_manifest
from vit.data.options import Reading
from vit.data.parquet import parquet_splits
from vit.data.sources import PathList, Splits, missing_files
from vit.data.vtab import is_task, load_task
from vit.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vit.data.own import OwnImages


def find_splits(
    dataset: str | None,
    root: str | None,
    reading: Reading,
    *,
    data_dir: str | None = None,
    own: "OwnImages | None" = None,
) -> Splits:
    """The splits of a named data set, or of the files in `root`, by the arguments of ImageData."""
    shards = {} if root is None or own is not None else find_shards(root)
    tars = {word: names for word, names in shards.items() if is_tar(names)}
    if root is not None and not tars and (stored := parquet_splits(root, shards, reading)):
        from vit.data.own import OwnImages  # it finds the splits of its folders here

        own = OwnImages(stored)
    if root is not None and reading.model is None and is_task(root):
        return load_task(root, search=reading.cut.val_fraction > 0)
    if own is not None:
        return own.splits(reading)
    is_manifest = root is not None and root.lower().endswith(SUFFIXES) and not os.path.isdir(root)
    trained_on = reading.labelled and reading.model is None
    if reading.separator is not None and trained_on and not is_manifest:
        separator = f"data.label_separator={reading.separator!r}"
        raise UserError(f"{root or dataset} is no CSV or Parquet file: leave out {separator}")
    if root is None:
        assert dataset is not None
        splits = load_dataset(dataset, reading, data_dir=data_dir)
        return splits if reading.labelled else replace(splits, classes=[])
    if is_manifest:
        return load_manifest(root, reading)
    return load_folder(root, reading, tars)


def check_source(dataset: str | None, root: str | None) -> None:
    """UserError without data, for an unknown name, for what does not exist, and for an address that
    cannot be read here."""
    if root == "" or (root is None and dataset is None):  # "" is an unset shell variable
        given = f"no data (root={root!r})"
        raise UserError(f"{given}: give --data with a folder, a CSV, or the name of a data set")
    if dataset is not None and dataset not in CATALOG:
        if os.path.exists(os.path.expanduser(dataset)):
            raise UserError(f"dataset={dataset!r} is a place of files; give root={dataset!r}")
        near = did_you_mean(dataset, CATALOG) or f"; known are {', '.join(sorted(CATALOG))}"
        raise UserError(f"unknown dataset {dataset!r} (a folder is given by --data.root){near}")
    if root is not None:
        check_root(root)


def load_dataset(
    name: str, reading: Reading, *, data_dir: str | os.PathLike[str] | None = None
) -> Splits:
    """The splits of a data set of CATALOG, downloaded to `data_dir` if need be.

    Its test set does not depend on `reading`. `data_dir`: `data` in VIT_CACHE or ~/.cache/vit by
    default. Of several processes one downloads, and the others wait at a file lock.

    Raises UserError for an unknown name, and for files that are neither there nor downloaded.
    """
    check_source(name, None)
    dataset = CATALOG[name]
    folder = cache_directory() / "data" if data_dir is None else Path(data_dir).expanduser()
    classes, parts = dataset.load(folder)
    # torchvision takes any folder for complete, also one left by an interrupted unpacking.
    count, expected = sum(map(len, parts.values())), sum(dataset.images.values())
    for part in parts.values():
        count -= len(missing_files(part.items)) if isinstance(part.items, PathList) else 0
    if count != expected:
        has = f"{name} has {count:,} images on disk, not {expected:,}"
        raise UserError(f"{has}; delete its files in {folder} and run again")
    reading = replace(reading, cut=replace(reading.cut, test_fraction=0.0))
    return complete(classes, parts, parts["train"].names, reading, where=name)
