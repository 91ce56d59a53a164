"""From what a user names, a data set or files, to its splits; nothing is decoded."""

import os
from dataclasses import dataclass, replace

import numpy as np

from vit.data.by_name import load_dataset
from vit.data.folder import load_folder, load_held_out, load_unlabelled
from vit.data.manifest import SUFFIXES, load_held_out_manifest, load_manifest
from vit.data.options import Splitting
from vit.data.sources import ImageSet, Splits
from vit.errors import UserError


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

    `arrays`: whether .npy files are images, too. With `known`, `root` is held-out images of a
    model, all of them test.
    """
    fractions = {"val_fraction": cut.val_fraction, "seed": cut.seed}
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
        named = load_dataset(dataset, data_dir=data_dir, **fractions)
        return named if labelled else replace(named, classes=[])
    if known is not None and is_manifest:
        return load_held_out_manifest(
            root, known.classes, separator=separator, multilabel=known.multilabel
        )
    if known is not None and known.classes:
        found = load_held_out(root, known.classes, arrays=arrays)
        return _with_several_labels(found) if known.multilabel else found
    fractions["test_fraction"] = cut.test_fraction
    if is_manifest:
        return load_manifest(root, labelled=labelled, separator=separator, **fractions)
    if not labelled:
        held_out = known is not None
        return load_unlabelled(root, held_out=held_out, arrays=arrays, **fractions)
    return load_folder(root, arrays=arrays, **fractions)


def _with_several_labels(found: Splits) -> Splits:
    """The same images, whose labels are rows of zeros and ones."""
    ones = np.eye(len(found.classes), dtype=np.float32)

    def rows(images: ImageSet | None) -> ImageSet | None:
        return None if images is None else replace(images, labels=ones[images.labels])

    train, test = replace(found.train, labels=ones[found.train.labels]), rows(found.test)
    return replace(found, multilabel=True, train=train, val=rows(found.val), test=test)
