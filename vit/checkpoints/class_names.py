"""Names and thresholds of classes, in the order of a head's outputs; in the config.json of
transformers, too; and published heads' names."""

import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit.errors import POSITIVE, SHARE, UserError, check_range, shorten

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


def names_in(config: dict[str, Any], num_classes: int) -> list[str] | None:
    """id2label in order; transformers' placeholders LABEL_0, LABEL_1 ... are no names."""
    labels = {int(key): str(name) for key, name in (config.get("id2label") or {}).items()}
    if sorted(labels) != list(range(num_classes)) or not labels:
        return None
    names = [labels[i] for i in range(num_classes)]
    return None if names == [f"LABEL_{i}" for i in range(num_classes)] else names


def label_kind(config: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """`extra` of a model with several labels per image."""
    if config.get("problem_type") != "multi_label_classification":
        return {}
    extra = {"multilabel": True}
    if config.get(THRESHOLDS) is not None:
        extra["thresholds"] = config[THRESHOLDS]
    check_labels(extra, num_classes)
    return extra


def labels(num_classes: int, classes: list[str] | None) -> dict[str, Any]:
    """id2label and label2id, with transformers' placeholders without names."""
    if not num_classes:
        return {}
    names = classes or [f"LABEL_{i}" for i in range(num_classes)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
