"""Names and thresholds of classes, in the order of a head's outputs; and published heads' names."""

import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.errors import SHARE, Range, UserError, check_range, shorten

IMAGENET21K_CLASSES = 21_843
"""Outputs of Google's models of ImageNet-21k (other orders have 21,841 or 11,221)."""


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
    check_range("temperature", extra.get("temperature", 1.0), Range(low=0, low_open=True))
    thresholds = extra.get("thresholds")
    if thresholds is None:
        return
    if not isinstance(thresholds, list) or len(thresholds) != num_classes:
        raise UserError(f"thresholds={shorten(thresholds)} is not a list of {num_classes} numbers")
    for value in thresholds:
        check_range("a threshold", value, SHARE)


def imagenet_classes() -> list[str]:
    """The names of ImageNet's 1000 classes, from torchvision."""
    from torchvision.models import ResNet50_Weights

    return list(ResNet50_Weights.DEFAULT.meta["categories"])


def imagenet21k_classes() -> list[str]:
    """WordNet's words for Google's 21,843 classes, and the id if several have the same words."""
    content = gzip.decompress(Path(__file__).with_name("imagenet21k.txt.gz").read_bytes())
    lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    counts = Counter(words for _, words in pairs)
    return [words if counts[words] == 1 else f"{words} ({wordnet})" for wordnet, words in pairs]
