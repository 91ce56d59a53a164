"""From what a user names, a data set or files, to its splits; nothing is decoded."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cache import cache_directory
from vit.data.catalog import CATALOG, list_datasets
from vit.data.folder import load_folder, load_held_out
from vit.data.manifest import SUFFIXES, load_held_out_manifest, load_manifest
from vit.data.options import Columns, Splitting
from vit.data.sources import PathList, Splits, complete, missing_files
from vit.errors import UserError, did_you_mean, no_folder

if TYPE_CHECKING:
    from vit.data.own import OwnImages


@dataclass(frozen=True, kw_only=True)
class ModelClasses:
    """The classes of a model that exists."""

    names: list[str]
    """In the order of its outputs; none if it has no classes."""
    multilabel: bool


def find_splits(
    dataset: str | None,
    root: str | None,
    *,
    data_dir: str | None,
    cut: Splitting,
    own: "OwnImages | None" = None,
    labelled: bool = True,
    model: ModelClasses | None = None,
    separator: str | None = None,
    columns: Columns,
    arrays: bool = False,
    tree: bool = False,
) -> Splits:
    """The splits of a named data set, or of the files in `root`, by the arguments of ImageData.

    `arrays`: .npy files are images, too. With `model`, `root` is held-out images, all of them test.
    `tree`: names of classes are paths, in a folder those of the folders with images.
    """
    of_folder = {"arrays": arrays, "tree": tree}
    if own is not None:
        return own.splits(cut, labelled=labelled, columns=columns, **of_folder)
    is_manifest = root is not None and root.lower().endswith(SUFFIXES) and not os.path.isdir(root)
    if separator == "":
        raise UserError("data.label_separator='' separates nothing; give text such as ';'")
    if separator is not None and labelled and not is_manifest and model is None:
        raise UserError(
            f"data.label_separator={separator!r} is for the labels of a CSV or Parquet file, and "
            f"{root or dataset} is none; leave it out"
        )
    if root is None:
        assert dataset is not None
        splits = load_dataset(dataset, cut, data_dir=data_dir)
        return splits if labelled else replace(splits, classes=[])
    of_manifest: dict[str, Any] = {"separator": separator, "columns": columns, "tree": tree}
    if model is not None:
        classes, multilabel = model.names, model.multilabel
        if is_manifest:
            return load_held_out_manifest(root, classes, multilabel=multilabel, **of_manifest)
        return load_held_out(root, classes, multilabel=multilabel, **of_folder)
    if is_manifest:
        return load_manifest(root, cut, labelled=labelled, **of_manifest)
    return load_folder(root, cut, labelled=labelled, **of_folder)


def check_source(dataset: str | None, root: str | None) -> None:
    """UserError without data, for an unknown name, and for a folder or file that does not exist."""
    if root == "" or (root is None and dataset is None):  # "" is an unset shell variable
        raise UserError(
            f"no data (root={root!r}): give --data with a folder, a CSV, or the name of a data set "
            "such as digits"
        )
    if dataset is not None and dataset not in CATALOG:
        near = did_you_mean(dataset, CATALOG) or f"; known are {', '.join(list_datasets())}"
        raise UserError(f"unknown dataset {dataset!r} (a folder is given by --data.root){near}")
    if root is not None and not os.path.exists(os.path.expanduser(root)):
        raise no_folder(root)


def load_dataset(
    name: str, cut: Splitting, *, data_dir: str | os.PathLike[str] | None = None
) -> Splits:
    """The splits of a data set of `list_datasets()`, downloaded to `data_dir` if need be.

    Its test set does not depend on `cut`. `data_dir`: `data` in VIT_CACHE or ~/.cache/vit by
    default. Of several processes one downloads, and the others wait at a file lock.

    Raises:
        UserError: The name is unknown, or the files are neither there nor can be downloaded.
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
        raise UserError(
            f"{dataset.title} has {count:,} images on disk, not {expected:,}; "
            f"delete its files in {folder} and run again"
        )
    return complete(
        classes,
        parts,
        list(parts["train"].names),
        replace(cut, test_fraction=0.0),
        where=name,
    )
