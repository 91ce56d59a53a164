"""The splits of a data set by name, or of files; nothing is decoded."""

import os
from dataclasses import replace
from pathlib import Path

from vit.data.catalog import CATALOG
from vit.data.cut import complete
from vit.data.folder import load_folder
from vit.data.manifest import SUFFIXES, Listing, Table
from vit.data.roots import exists, rows_for, source_of
from vit.data.settings import Reading
from vit.data.sources import PathList, Splits, missing_files
from vit.errors import UserError, did_you_mean, did_you_mean_beside
from vit.tables import resolve
from vit.writing import cache_directory


def find_splits(
    dataset: str | None, root: object, reading: Reading, *, data_dir: str | None = None
) -> Splits:
    """The splits of a named data set, or of `root`: files, or images of a Python program."""
    if dataset is not None and root is None:
        reading.refuse_columns(dataset)
        splits = load_dataset(dataset, reading, data_dir=data_dir)
        return splits if reading.labelled else replace(splits, classes=[])
    if isinstance(root, Splits):
        return root
    if (source := source_of(root)) is not None:
        return source.splits(root, reading)
    path = str(root)
    try:
        if path.lower().endswith(SUFFIXES) and not os.path.isdir(path):
            return Listing(Table(path), reading).read()
        return load_folder(path, reading)
    except UserError:
        for row in rows_for(root):
            resolve(row)  # a source that is not installed is the reason
        raise


def check_source(dataset: str | None, root: object) -> None:
    """UserError without data, for an unknown name, for what does not exist, and for an address that
    cannot be read here."""
    if root == "" or (root is None and dataset is None):  # "" is an unset shell variable
        remedy = "give --data with a folder, a CSV, or the name of a data set"
        raise UserError(f"no data (root={root!r}): {remedy}")
    if dataset is not None and dataset not in CATALOG:
        if os.path.exists(os.path.expanduser(dataset)):
            raise UserError(f"dataset={dataset!r} is a place of files; give root={dataset!r}")
        near = did_you_mean(dataset, CATALOG) or f"; known are {', '.join(sorted(CATALOG))}"
        raise UserError(f"unknown dataset {dataset!r} (a folder is given by --data.root){near}")
    if root is not None and not isinstance(root, Splits) and not exists(root):
        raise UserError(f"data folder {root} does not exist{did_you_mean_beside(str(root))}")


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
