"""How labels are written in one cell, and what is said where they seem to be written otherwise."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from vit.errors import UserError, shorten

SEPARATOR = "|"
OTHER_SEPARATORS = (";", ",", "/")
"""What other programs write between the labels of one image: part of a class name unless
`label_separator` says otherwise."""

_NEARLY_ALL, _MOST = 0.9, 0.75
"""Share of labels with such a separator, or of those with a part in common, that gets a note."""


def joined_labels_note(
    path: str, labels: Sequence[tuple[str, ...]], cells: np.ndarray
) -> list[str]:
    """A note where label cells look like several labels that are not separated; else nothing.

    `labels` of each distinct cell, and the cell of each row, int `n`.
    """
    counts = np.bincount(cells, minlength=len(labels))
    labelled = sum(int(n) for n, own in zip(counts, labels, strict=True) if own)
    for separator in OTHER_SEPARATORS:
        joined = [at for at, own in enumerate(labels) if any(separator in x for x in own)]
        number = int(counts[joined].sum())
        if number and (number >= _NEARLY_ALL * labelled or _recurring(separator, joined, labels)):
            most = int(joined[np.argmax(counts[joined])])
            example = next(label for label in labels[most] if separator in label)
            return [
                f"{path}: {number:,} of {labelled:,} labels contain {separator!r}, which "
                f"does not separate labels: {shorten(example)!r} is one class; if it is several, "
                f"add --data.label_separator '{separator}'"
            ]
    return []


def _recurring(separator: str, joined: list[int], labels: Sequence[tuple[str, ...]]) -> bool:
    """Whether most of the `joined` cells have a part that another cell has, too."""
    parts = [{part.strip() for label in own for part in label.split(separator)} for own in labels]
    cells = Counter(part for cell in parts for part in cell)
    shared = sum(any(cells[part] > 1 for part in parts[at]) for at in joined)
    return shared >= _MOST * len(joined)


def needless_separator(
    path: str, separator: str, labels: Sequence[tuple[str, ...]], columns: Collection[int]
) -> UserError:
    """The refusal of a separator that occurs in none of the labels.

    `columns`: those that are classes, where there is no label column.
    """
    start = f"data.label_separator={separator!r}"
    if columns:
        return UserError(f"{start}: {path} has a column per class and no labels; leave it out")
    names = [label for own in labels for label in own]
    there = [s for s in (SEPARATOR, *OTHER_SEPARATORS) if any(s in name for name in names)]
    hint = f"they contain {there[0]!r}" if there else "leave it out"
    such = f", such as {shorten(names[0])!r}" if names else ""
    return UserError(f"{start} occurs in none of the labels of {path}{such}; {hint}")
