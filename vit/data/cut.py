"""The cut of val and test from train by a fixed seed.

Shapes: n images, k classes.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from vit.data.sources import SPLITS, ImageSet, Origin, PathList, SplitName, Splits
from vit.errors import BELOW_ONE, UserError, check_range, some_of
from vit.label_tree import inner_class

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.settings import Reading

Cut = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Indices of train, val and test, each ascending."""
Keys = Sequence[str] | PathList


def held_out(
    keys: Keys,
    strata: Sequence[str],
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
    eligible: np.ndarray | None = None,
) -> Cut:
    """A stratified cut without a generator.

    The images of a stratum (a class) are ordered by a hash of (seed, stratum, key); the first are
    test, the next val. So an added image moves few others, and the test set does not depend on
    `val_fraction`. A fraction above 0 takes at least one image of each stratum, but train keeps
    one first: val gets the second, test the third. `eligible`: true for those that may be held out.
    """
    members: dict[str, list[int]] = {}
    for index, stratum in enumerate(strata):
        members.setdefault(stratum, []).append(index)
    part = np.zeros(len(keys), dtype=np.int8)
    for stratum, indices in members.items():
        count = len(indices)
        num_val = min(_share(count, val_fraction), count - 1)
        num_test = min(_share(count, test_fraction), count - 1 - num_val)
        free = [i for i in indices if eligible is None or eligible[i]]
        if len(free) < (asked := num_test + num_val):  # both get their part of what there is
            num_test = -(-len(free) * num_test // asked)
            num_val = len(free) - num_test
        ordered = sorted(free, key=lambda i: hashed_text(f"{seed}\0{stratum}\0{keys[i]}"))
        part[ordered[:num_test]] = 2
        part[ordered[num_test : num_test + num_val]] = 1
    train, val, test = (np.flatnonzero(part == number) for number in range(3))
    return train, val, test


def hashed_text(text: str, size: int = 16) -> bytes:
    """BLAKE2b of a text, `size` bytes."""
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=size).digest()


def _share(count: int, fraction: float) -> int:
    return max(1, int(count * fraction + 0.5)) if fraction > 0 else 0


def by_class(
    images: ImageSet, classes: list[str], keys: Keys, where: str, **options: Any
) -> tuple[Cut, list[str]]:
    """`held_out` class by class, or as a whole where images have several labels or none; no notes.

    UserError if there is no image for val.
    """
    one_label = bool(classes) and images.labels.ndim == 1
    strata = [classes[label] for label in images.labels] if one_label else [""] * len(images)
    cut = held_out(keys, strata, **options)
    if options["val_fraction"] and not len(cut[1]) and options["eligible"] is None:
        remedy = "add images, give a val folder, or set --data.splits.val_fraction 0"
        raise UserError(f"no class of {where} has two images to cut a val from train; {remedy}")
    return cut, []


Divide = Callable[..., tuple[Cut, list[str]]]
"""A cut with the arguments of `by_class`, and notes on it."""


def complete(
    classes: list[str],
    sets: Mapping[SplitName, ImageSet],
    keys: Keys,
    reading: "Reading",
    *,
    where: str,
    notes: Sequence[str] = (),
    divide: Divide = by_class,
) -> Splits:
    """The splits of `sets`, train at least, and those cut from train: val, and test without both.

    `keys` name the images of train, `where` the source in errors.

    Raises UserError as `divide` does, or if, of a `tree`, a class is no leaf.
    """
    cut, parts, train = reading.cut, dict(sets), sets["train"]
    if reading.tree:
        _check_tree(classes, train)
    shares: dict[SplitName, float] = {
        "val": 0.0 if "val" in sets else cut.val_fraction,
        "test": 0.0 if "val" in sets or "test" in sets else cut.test_fraction,
    }
    together = sum(shares.values())
    check_range("splits.val_fraction + splits.test_fraction", together, BELOW_ONE)
    if together:
        held, more = _cut(train, classes, keys, where, reading, shares, divide)
        parts, notes = parts | held, [*notes, *more]

    def origin(name: SplitName) -> Origin:
        return "none" if name not in parts else "given" if name in sets else "cut from train"

    return Splits(
        classes,
        **parts,
        multilabel=train.labels.ndim == 2,
        val_origin=origin("val"),
        test_origin=origin("test"),
        notes=[*notes],
    )


def _cut(
    train: ImageSet,
    classes: list[str],
    keys: Keys,
    where: str,
    reading: "Reading",
    shares: dict[SplitName, float],
    divide: Divide,
) -> tuple[dict[SplitName, ImageSet], list[str]]:
    """The rest of train and the splits with these shares of it; notes."""
    eligible, seen = None, []
    if reading.known is not None and reading.cut.seen == "refuse":
        names = " and ".join(name for name, share in shares.items() if share)
        eligible, seen = reading.known.eligible(train, names)
    options = {f"{name}_fraction": share for name, share in shares.items()}
    options |= {"seed": reading.cut.seed or 0, "eligible": eligible}
    indices, more = divide(train, classes, keys, where, **options)
    cuts: dict[SplitName, np.ndarray] = dict(zip(SPLITS, indices, strict=True))
    if eligible is None and not more:
        asked: dict[SplitName, np.ndarray]
        asked = {name: cuts[name] for name, share in shares.items() if share}
        more = _shortages(train, classes, where, asked)
    return {name: train.select(rows) for name, rows in cuts.items() if len(rows)}, seen + more


def _shortages(
    train: ImageSet, classes: list[str], where: str, cuts: Mapping[SplitName, np.ndarray]
) -> list[str]:
    """Notes on a test split, and on classes, for which there are too few images."""
    notes = []
    if not len(cuts.get("test", [0])):
        notes.append(f"{where}: no class has enough images to cut a test split from train")
    if classes and train.labels.ndim == 1:
        counts = np.bincount(train.labels[next(iter(cuts.values()))], minlength=len(classes))
        if scarce := some_of(repr(classes[label]) for label in np.flatnonzero(counts == 0)):
            notes.append(f"{where}: too few images or groups to hold one out of {scarce}")
    return notes


def _check_tree(classes: list[str], train: ImageSet) -> None:
    """UserError unless each image has one label, and the classes are leaves."""
    if train.labels.ndim == 2:
        raise UserError("data.labels=tree needs one label per image; this set has several")
    if (pair := inner_class(classes)) is not None:
        first = int(np.argmax(train.labels == classes.index(pair[0])))
        text = f"{train.names.name(first)} has the label {pair[0]!r}, and the class {pair[1]!r}"
        raise UserError(f"{text} is below it; put it into a class below {pair[0]!r}")
