"""Folds of the images of a data set. Shapes: n images, k classes."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vit.console import note
from vit.data.sources import Splits, group_numbers
from vit.errors import UserError, some_of
from vit.extensions.transfer.image_lists import listed_images, reading_options
from vit.runs.options import Options


def column_of(fold: int) -> str:
    """The column of a list that has this fold, from 1, as val."""
    return f"fold_{fold}"


def reading_folds(splits: Splits, file: Path, folds: int) -> dict[str, list[str]]:
    """End of a name -> the options of `vit fit` that read a list with one fold as val."""
    columns = [column_of(number + 1) for number in range(folds)]
    return {f"_{column}": reading_options(splits, file, column) for column in columns}


def seed_of(options: Options) -> int:
    """The seed of the splits: --data.splits.seed, or that of the run."""
    seed: int | None = options.config.data.splits.seed
    return options.config.seed_everything if seed is None else seed


def listed_folds(options: Options, folds: int) -> str:
    """A CSV of the images with the column `split`, in which val is part of train, and one for each
    fold, by the seed of the splits. Images that the weights have learned are in train alone, unless
    --data.splits.seen is allow.

    UserError for a single fold, for a class with fewer groups, or images, than folds, and for
    images that are no files.
    """
    if folds < 2:
        raise UserError(f"--folds {folds} must be at least 2")
    splits, known, seed = options.data.splits, options.data.known, seed_of(options)
    parts = [part for part in (splits.train, splits.val) if part is not None]
    labels, groups = np.concatenate([part.labels for part in parts]), None
    if splits.train.groups is not None:
        groups = group_numbers(name for part in parts for name in part.groups or ())
    fold_of, unseen = np.full(len(labels), -1), np.full(len(labels), True)
    if known is not None and options.config.data.splits.seen == "refuse":
        unseen = ~np.concatenate([known.mask(part) for part in parts])
        if groups is not None:  # a group is in train, or in one fold
            unseen = ~np.isin(groups, groups[~unseen])
        if seen := len(unseen) - int(unseen.sum()):
            shared = "" if groups is None else ", or share a group with one that was"
            note(
                f"{seen:,} of {len(unseen):,} images were in the training of {known.weights}"
                f"{shared}: no fold leaves them out (--data.splits.seen allow does)"
            )
    of_unseen = None if groups is None else groups[unseen]
    fold_of[unseen] = fold_of_each(labels[unseen], of_unseen, splits.classes, folds, seed)
    tests = ["test"] * len(splits.test or ())
    columns = {"split": ["train"] * len(labels) + tests}
    for fold in range(folds):
        columns[column_of(fold + 1)] = [*np.where(fold_of == fold, "val", "train"), *tests]
    return listed_images(splits, columns)


def fold_of_each(
    labels: np.ndarray, groups: np.ndarray | None, classes: Sequence[str], folds: int, seed: int
) -> np.ndarray:
    """The fold of each image, int64 `n` from 0: classes in equal shares, as far as whole groups
    allow, by scikit-learn's StratifiedKFold or StratifiedGroupKFold.

    An image with several labels counts for each of them.

    Args:
        labels: Classes `n`, or zeros and ones `n k`.
        groups: Numbers `n`, equal in a group.

    UserError for a class with fewer groups, or images, than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold  # slow to import

    count, several = len(labels), labels.ndim == 2
    images, kinds = labels.nonzero() if several else (np.arange(count), labels)
    units = np.arange(count) if groups is None else groups
    _check_classes(kinds, units[images], classes, folds, "images" if groups is None else "groups")
    if several:  # images without labels are a kind, too
        bare = np.flatnonzero(~labels.any(1))
        images = np.concatenate([images, bare])
        kinds = np.concatenate([kinds, np.full(len(bare), len(classes))])
    divided = StratifiedKFold if groups is None and not several else StratifiedGroupKFold
    splitter = divided(folds, shuffle=True, random_state=seed)
    chosen = np.empty(count, dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few images without labels
        for fold, (_, out) in enumerate(splitter.split(kinds, kinds, units[images])):
            chosen[images[out]] = fold
    return chosen


def _check_classes(
    kinds: np.ndarray, units: np.ndarray, classes: Sequence[str], folds: int, name: str
) -> None:
    pairs = np.unique(np.stack([kinds, units]), axis=1)
    counts = np.bincount(pairs[0], minlength=len(classes))
    if len(scarce := np.flatnonzero(counts < folds)):
        shown = some_of(f"{classes[at]!r} has {counts[at]}" for at in scarce.tolist())
        raise UserError(
            f"--folds {folds}: each class needs as many {name}, and {shown}; give fewer folds, or "
            "add images"
        )
