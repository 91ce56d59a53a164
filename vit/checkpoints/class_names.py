"""Names and thresholds of classes, in the order of a head's outputs; in the config.json of
transformers, too; and published heads' names."""

import gzip
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vit.errors import POSITIVE, SHARE, UserError, check_range, shorten

IMAGENET_CLASSES = 1000
IMAGENET21K_CLASSES = 21_843
"""Outputs of Google's models of ImageNet-21k (other orders have 21,841 or 11,221)."""
THRESHOLDS = "label_thresholds"
"""Field of config.json with a threshold per class; transformers keeps it and does not use it."""


def check_names(classes: Sequence[str] | None, num_classes: int | None = None) -> None:
    """UserError unless `classes` are distinct names, `num_classes` of them if that is given."""
    if classes is None:
        return
    if not isinstance(classes, list | tuple) or not all(isinstance(n, str) for n in classes):
        raise UserError(f"classes={shorten(classes)} is not a list of names")
    if num_classes not in (None, len(classes)):
        raise UserError(f"{len(classes)} class names for num_classes={num_classes}")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise UserError(f"classes has the name {shorten(twice[0])} twice; give each class one name")


def check_labels(extra: dict[str, Any], num_classes: int) -> None:
    """UserError unless `multilabel` and `tree` are bools, `thresholds` a probability per class, and
    `temperature` positive."""
    for name in ("multilabel", "tree"):
        if not isinstance(extra.get(name, False), bool):
            raise UserError(f"{name}={shorten(extra[name])} is not true or false")
    check_range("temperature", extra.get("temperature", 1.0), POSITIVE)
    thresholds = extra.get("thresholds")
    if thresholds is None:
        return
    if not isinstance(thresholds, list) or len(thresholds) != num_classes:
        raise UserError(f"thresholds={shorten(thresholds)} is not a list of {num_classes} numbers")
    for value in thresholds:
        check_range("a threshold", value, SHARE)


def imagenet_classes() -> list[str]:
    """The names of ImageNet's 1000 classes, torchvision's."""
    return [name for _, name, _ in _listed("imagenet1k")]


def imagenet_ids() -> list[str]:
    """Their WordNet ids."""
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


def names_in(config: dict[str, Any], num_classes: int) -> list[str] | None:
    """id2label in order; transformers' placeholders LABEL_0, LABEL_1 ... are no names."""
    labels = {int(key): str(name) for key, name in (config.get("id2label") or {}).items()}
    if sorted(labels) != list(range(num_classes)) or not labels:
        return None
    names = [labels[i] for i in range(num_classes)]
    return None if names == [f"LABEL_{i}" for i in range(num_classes)] else names


def label_kind(config: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """`extra` of a model with several labels per image, and of a regression."""
    kind = config.get("problem_type")
    if kind == "regression":
        return {"regression": True}
    if kind != "multi_label_classification" and config.get(THRESHOLDS) is None:
        return {}
    extra = {"multilabel": True}
    if config.get(THRESHOLDS) is not None:
        extra["thresholds"] = config[THRESHOLDS]
    check_labels(extra, num_classes)
    return extra


def unanswerable(num_classes: int, *, multilabel: bool, regression: bool = False) -> str:
    """Why the outputs of a model tell no classes apart; "" where they do."""
    if regression:
        return "is a regression (problem_type), its outputs are numbers and no classes"
    if num_classes == 1 and not multilabel:
        return (
            "has one output, which softmax makes 100 % for every image, unless its config.json "
            "says problem_type: multi_label_classification"
        )
    return ""


def labels(num_classes: int, classes: list[str] | None) -> dict[str, Any]:
    """id2label and label2id, with transformers' placeholders without names."""
    if not num_classes:
        return {}
    names = classes or [f"LABEL_{i}" for i in range(num_classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
