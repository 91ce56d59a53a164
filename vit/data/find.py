"""From what a user names, a data set or files, to its splits; nothing is decoded."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from vit.cache import cache_directory
from vit.data.catalog import CATALOG, list_datasets
from vit.data.folder import load_folder, load_held_out
from vit.data.manifest import SUFFIXES, load_held_out_manifest, load_manifest
from vit.data.options import Splitting
from vit.data.sources import PathList, Splits, complete, missing_files
from vit.errors import UserError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Known:
    """A model that exists, for which images are found."""

    classes: list[str]
    """In the order of its outputs; none where it has no classes."""
    multilabel: bool = False


def find_splits(
    dataset: str | None,
    root: str | None,
    *,
    data_dir: str | None,
    cut: Splitting,
    labelled: bool = True,
    known: Known | None = None,
    separator: str | None = None,
    arrays: bool = False,
) -> Splits:
    """The splits of a named data set, or of the files in `root`, by the arguments of ImageData.

    `arrays`: .npy files are images, too. With `known`, `root` is held-out images of a model, all of
    them test.
    """
    is_manifest = root is not None and root.lower().endswith(SUFFIXES) and not os.path.isdir(root)
    if separator == "":
        raise UserError("data.label_separator='' separates nothing; give text such as ';'")
    if separator is not None and labelled and not is_manifest and known is None:
        raise UserError(
            f"data.label_separator={separator!r} is for the labels of a CSV or Parquet file, and "
            f"{root or dataset} is none; leave it out"
        )
    if root is None:
        assert dataset is not None
        fraction = cut.val_fraction
        splits = load_dataset(dataset, data_dir=data_dir, val_fraction=fraction, seed=cut.seed)
        return splits if labelled else replace(splits, classes=[])
    if known is not None:
        classes, multilabel = known.classes, known.multilabel
        if is_manifest:
            return load_held_out_manifest(root, classes, separator=separator, multilabel=multilabel)
        return load_held_out(root, classes, multilabel=multilabel, arrays=arrays)
    shares = {"val_fraction": cut.val_fraction, "test_fraction": cut.test_fraction}
    if is_manifest:
        return load_manifest(root, labelled=labelled, separator=separator, seed=cut.seed, **shares)
    return load_folder(root, labelled=labelled, arrays=arrays, seed=cut.seed, **shares)


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
) -> Splits:
    """The splits of a data set of the catalog, downloaded to `data_dir` where it is not there yet.

    Several processes may ask at once: one downloads, the others wait at a file lock.

    Args:
        name: One of `list_datasets()`.
        data_dir: Where downloads go; `data` in VIT_CACHE or ~/.cache/vit by default.
        val_fraction: Share of train that becomes val if the data set has no val of its own.
        seed: Of that cut. Test sets do not depend on it.

    Raises:
        UserError: The name is unknown, or the files are neither there nor can be downloaded.
    """
    if name not in CATALOG:
        near = did_you_mean(name, CATALOG) or f"; known are {', '.join(list_datasets())}"
        raise UserError(f"unknown dataset {name!r} (a folder is given by --data.root){near}")
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
        seed=seed,
        val_fraction=val_fraction,
        test_fraction=0.0,
        where=name,
    )
