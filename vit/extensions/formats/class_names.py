"""ImageNet's classes, in the order of published heads' outputs: names and WordNet ids."""

import gzip
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from typing_extensions import override

from vit.weights.names import Names

IMAGENET_CLASSES = 1000
IMAGENET21K_CLASSES = 21_843
"""Outputs of Google's models of ImageNet-21k (other orders have 21,841 or 11,221)."""


class ImageNet(Names):
    """Row of the table `names`."""

    @override
    def classes(self, outputs: int) -> list[str] | None:
        """ImageNet's, by the number of them."""
        lists = {IMAGENET_CLASSES: imagenet_classes, IMAGENET21K_CLASSES: imagenet21k_classes}
        return lists[outputs]() if outputs in lists else None

    @override
    def head_rows(
        self, names: Sequence[str] | None, outputs: int, wanted: Sequence[str]
    ) -> list[int | None] | None:
        """Rows by WordNet ids, torchvision's names or WordNet's words; of 1000 outputs without
        names, too."""
        if names is None and outputs != IMAGENET_CLASSES:
            return None
        numbers = list(range(outputs)) if names is None else imagenet_numbers(names)
        if numbers is None or (asked := imagenet_numbers(wanted)) is None:
            return None
        of_number = {number: row for row, number in enumerate(numbers)}
        return [of_number.get(number) for number in asked]


def imagenet_classes() -> list[str]:
    """The names of ImageNet's 1000 classes, torchvision's."""
    return [name for _, name, _ in _listed("imagenet1k")]


def imagenet_ids() -> list[str]:
    """WordNet ids of the classes."""
    return [wordnet for wordnet, *_ in _listed("imagenet1k")]


def imagenet21k_classes() -> list[str]:
    """WordNet's words for Google's 21,843 classes, and the id if several have the same words."""
    pairs = _listed("imagenet21k")
    counts = Counter(words for _, words in pairs)
    return [words if counts[words] == 1 else f"{words} ({wordnet})" for wordnet, words in pairs]


def imagenet_numbers(names: Sequence[str]) -> list[int] | None:
    """The number that each name has among ImageNet's 1000 classes; None unless all have one.

    A name is a WordNet id, torchvision's, or one or all of WordNet's words, with spaces or `_`. One
    of several classes ("crane") means that which the other names leave, if there is only one.
    """
    meanings = [_imagenet_meanings().get(name.replace("_", " "), set()) for name in names]
    if len(names) == IMAGENET_CLASSES and all(i in each for i, each in enumerate(meanings)):
        return list(range(IMAGENET_CLASSES))
    certain = set().union(*(each for each in meanings if len(each) == 1))
    numbers = [each if len(each) == 1 else each - certain for each in meanings]
    distinct = set().union(*numbers)
    if len(distinct) < len(names) or any(len(each) != 1 for each in numbers):
        return None
    return [number for (number,) in numbers]


@cache
def _imagenet_meanings() -> dict[str, set[int]]:
    """A name -> the numbers of ImageNet's classes that it may be."""
    meanings: dict[str, set[int]] = defaultdict(set)
    for number, (wordnet, name, words) in enumerate(_listed("imagenet1k")):
        for text in (wordnet, name, words, *words.split(", ")):
            meanings[text].add(number)
    return dict(meanings)


def _listed(name: str) -> list[list[str]]:
    """WordNet id, names and words of each class in a list beside this file."""
    content = gzip.decompress(Path(__file__).with_name(f"{name}.txt.gz").read_bytes())
    return [line.split("\t") for line in content.decode().splitlines() if line[0] != "#"]
