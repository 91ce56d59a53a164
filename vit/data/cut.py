"""The cut of val and test from train by a fixed seed.

Shapes: n images, k classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from vit.data.groups import FEWEST, cut_groups, divided_groups
from vit.data.sources import ImageSet, Origin, PathList, SplitName, Splits
from vit.errors import BELOW_ONE, UserError, check_range, some_of
from vit.label_tree import inner_class

if TYPE_CHECKING:  # torch, which names of data sets do not need
    from vit.data.settings import Reading, Splitting


def held_out(
    keys: Sequence[str] | PathList,
    strata: Sequence[str],
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
    eligible: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of (train, val, test), each ascending: a stratified cut without a generator.

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
        ordered = sorted(free, key=lambda i: _hash(f"{seed}\0{stratum}\0{keys[i]}"))
        part[ordered[:num_test]] = 2
        part[ordered[num_test : num_test + num_val]] = 1
    train, val, test = (np.flatnonzero(part == number) for number in range(3))
    return train, val, test


def _hash(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _share(count: int, fraction: float) -> int:
    return max(1, int(count * fraction + 0.5)) if fraction > 0 else 0


def complete(
    classes: list[str],
    sets: Mapping[SplitName, ImageSet],
    keys: Sequence[str] | PathList,
    reading: "Reading",
    *,
    where: str,
    notes: Sequence[str] = (),
) -> Splits:
    """The splits given, `train` at least, and those cut from train: val, and test if it lacks both.

    Images with one label are cut class by class, those with several as a whole, and those in groups
    by whole groups. `keys` name the images of train, `where` the source in errors.

    Raises UserError if no class has an image to spare, as `divided_groups` does, or if, of a
    `tree`, a class is no leaf.
    """
    cut, parts = reading.cut, dict(sets)
    named = [images.groups for images in sets.values()]
    notes = [*notes, *divided_groups(where, reading.columns.group, named)]
    if reading.tree:
        _check_tree(classes, sets["train"])
    if "test" in sets or "val" in sets:
        cut = replace(cut, test_fraction=0.0)
    if "val" in sets:
        cut = replace(cut, val_fraction=0.0)
    together = cut.val_fraction + cut.test_fraction
    check_range("splits.val_fraction + splits.test_fraction", together, BELOW_ONE)
    if cut.val_fraction or cut.test_fraction:
        eligible, seen = None, []
        if reading.known is not None and cut.seen == "refuse":
            shares = {"val": cut.val_fraction, "test": cut.test_fraction}
            names = " and ".join(name for name, share in shares.items() if share)
            eligible, seen = reading.known.eligible(sets["train"], names)
        more, shortages = _cut(sets["train"], classes, keys, where, cut, eligible)
        parts, notes = parts | more, notes + seen + shortages

    def origin(name: SplitName) -> Origin:
        return "none" if name not in parts else "given" if name in sets else "cut from train"

    return Splits(
        classes,
        **parts,
        multilabel=parts["train"].labels.ndim == 2,
        val_origin=origin("val"),
        test_origin=origin("test"),
        notes=notes,
    )


def _cut(
    whole: ImageSet,
    classes: list[str],
    keys: Sequence[str] | PathList,
    where: str,
    cut: "Splitting",
    eligible: np.ndarray | None,
) -> tuple[dict[SplitName, ImageSet], list[str]]:
    """The rest of train and the splits cut from it; notes on classes with too few images."""
    one_label = bool(classes) and whole.labels.ndim == 1
    shares = {"val_fraction": cut.val_fraction, "test_fraction": cut.test_fraction}
    options: Any = {"seed": cut.seed or 0, "eligible": eligible, **shares}
    if whole.groups is not None:
        train, val, test = cut_groups(whole.groups, whole.labels, **options)
        if len(train) == len(whole):
            why = f"{FEWEST} groups are needed, and train keeps one of each class"
            if eligible is not None:
                why = "too few groups hold none of the images that the weights have learned"
            return {}, [f"{where}: no val or test is cut from it: {why}"]
    else:
        strata = [classes[label] for label in whole.labels] if one_label else [""] * len(keys)
        train, val, test = held_out(keys, strata, **options)
    if cut.val_fraction and not len(val) and eligible is None:
        remedy = "add images, give a val folder, or set --data.splits.val_fraction 0"
        raise UserError(f"no class of {where} has two images to cut a val from train; {remedy}")
    notes = []
    if cut.test_fraction and not len(test) and eligible is None:
        notes.append(f"{where}: no class has enough images to cut a test split from train")
    if one_label and eligible is None:
        labels = whole.labels[val if cut.val_fraction else test]
        counts = np.bincount(labels, minlength=len(classes))
        scarce = some_of(repr(classes[label]) for label in np.flatnonzero(counts == 0))
        if scarce:
            why = "too few images"
            if whole.groups is not None:
                why = "no group that was drawn has one; --data.splits.seed N draws others"
            notes.append(f"{where}: no image could be held out of {scarce}: {why}")
    chosen: dict[SplitName, np.ndarray] = {"val": val, "test": test}
    parts: dict[SplitName, ImageSet] = {"train": whole.select(train)}
    parts |= {name: whole.select(indices) for name, indices in chosen.items() if len(indices)}
    return parts, notes


def _check_tree(classes: list[str], train: ImageSet) -> None:
    """UserError unless each image has one label, and the classes are leaves."""
    if train.labels.ndim == 2:
        raise UserError("data.labels=tree needs one label per image; this set has several")
    if (pair := inner_class(classes)) is not None:
        first = int(np.argmax(train.labels == classes.index(pair[0])))
        found = f"{train.names.name(first)} has the label {pair[0]!r}, and the class {pair[1]!r}"
        raise UserError(f"{found} is below it; put it into a class below {pair[0]!r}")
