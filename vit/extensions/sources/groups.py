"""Groups of images that belong together, as those of a patient or a video: no cut divides one.

Shapes: n images, k classes.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from shlex import quote
from typing import Any

import numpy as np

from vit.data.cut import Cut, Keys, hashed_text
from vit.data.sources import ImageSet

FEWEST = 3
"""Groups of which some are held out: one each for train, val and test."""
_USUAL = re.compile(r"(group|patient|subject|video|location)([ _-]?id)?")


def unused_groups(where: str, roles: Mapping[str, str], classes: Sequence[str]) -> list[str]:
    """A note on the first column with a usual name of groups that has no other use.

    `roles`: of each column, as `Columns.roles` says; `classes`: columns that are classes.
    """
    used = ("path", "label", "split", "parent")
    names = [name for name, role in roles.items() if role not in used and name not in classes]
    usual = [name for name in names if _USUAL.fullmatch(name.lower())][:1]
    remedy = "if one has several images, --data.columns.group {} keeps them in one split"
    return [f"{where}: column {name!r} is not used; {remedy.format(quote(name))}" for name in usual]


def cut_groups(
    groups: Iterable[str],
    labels: np.ndarray,
    *,
    seed: int,
    val_fraction: float,
    test_fraction: float,
    eligible: np.ndarray | None = None,
) -> Cut:
    """Indices of (train, val, test), each ascending; nothing is held out of fewer than FEWEST
    groups, or if val or test would be empty against its fraction.

    The groups are ordered by a hash of (seed, group). The first are test until its share of all
    images is reached, the next val. A group that train needs, as no other left to it has one of
    its classes, stays in train.

    Args:
        groups: The name of each image's group.
        labels: Classes `n`, or zeros and ones `n k`.
        eligible: True `n` for images that may be held out; a group of others is not.
    """
    members: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    part, left = np.zeros(len(labels), dtype=np.int8), _per_class(labels, labels)
    free = [g for g, rows in members.items() if eligible is None or eligible[rows].all()]
    ordered = sorted(free, key=lambda group: hashed_text(f"{seed}\0{group}"))
    most = sum(len(members[group]) for group in free) / max(test_fraction + val_fraction, 1e-9)
    for number, fraction in ((2, test_fraction), (1, val_fraction)):
        share = fraction * min(most, len(labels))  # of few that are eligible each gets a part
        count, wanted = 0, max(1, int(share + 0.5)) if fraction else 0
        while count < wanted and ordered:
            rows = members[ordered.pop(0)]
            of_group = _per_class(labels[rows], labels)
            if ((of_group == 0) | (of_group < left)).all():
                part[rows], count, left = number, count + len(rows), left - of_group
        if fraction and (not count or len(members) < FEWEST):
            return np.arange(len(labels)), np.arange(0), np.arange(0)
    train, val, test = (np.flatnonzero(part == number) for number in range(3))
    return train, val, test


def _per_class(some: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Images of each class among `some` of the labels."""
    if labels.ndim == 2:
        return some.sum(0)
    return np.bincount(some, minlength=int(labels.max(initial=0)) + 1)


def by_groups(
    images: ImageSet, classes: Sequence[str], keys: Keys, where: str, **options: Any
) -> tuple[Cut, list[str]]:
    """The cut of `vit.data.cut.by_class`, by whole groups; a note if nothing is cut."""
    assert images.groups is not None
    cut = cut_groups(images.groups, images.labels, **options)
    if len(cut[0]) < len(images):
        return cut, []
    why = f"{FEWEST} groups are needed, and train keeps one of each class"
    if options["eligible"] is not None:
        why = "too few groups hold none of the images that the weights have learned"
    return cut, [f"{where}: no val or test is cut from it: {why}"]


def divided_groups(where: str, column: str, sets: Iterable[Iterable[str]]) -> list[str]:
    """A note on the groups that are in several of the sets."""
    counts = Counter(group for groups in sets for group in set(groups))
    divided = sorted(group for group, count in counts.items() if count > 1)
    remedy = f"`vit data check --group {column} --fix OUT.csv` moves them"
    which = f"{len(divided):,} groups are in several splits, such as {divided[:1]}"
    return [f"{where}: {which}; {remedy}"] if divided else []
