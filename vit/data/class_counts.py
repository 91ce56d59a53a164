"""Training images per class, in one line."""

from collections.abc import Sequence
from statistics import median

ALL = 12
"""Classes that are all listed; of more, the rarest and the most common ones."""
ENDS = 3


def class_counts(classes: Sequence[str], counts: Sequence[int]) -> str:
    """'train images per class: cat 120, dog 30'; of many classes both ends and the median."""
    pairs = list(zip(classes, counts, strict=True))
    if len(pairs) <= ALL:
        return f"train images per class: {_listed(pairs)}"
    ordered = sorted(pairs, key=lambda pair: pair[1])
    middle = f"{median(counts):,.10g}"
    return (
        f"train images per class: fewest {_listed(ordered[:ENDS])}; median {middle}; most "
        f"{_listed(ordered[: -ENDS - 1 : -1])}"
    )


def _listed(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in pairs)
