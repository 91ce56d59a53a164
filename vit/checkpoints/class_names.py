"""Names of the classes that published heads have, in the order of their outputs."""

import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from vit.errors import UserError, shorten

IMAGENET21K_CLASSES = 21_843
"""Outputs of Google's models of ImageNet-21k (other orders have 21,841 or 11,221)."""


def imagenet_classes() -> list[str] | None:
    """The names of ImageNet's 1000 classes, from torchvision; None where it is not installed."""
    try:
        from torchvision.models import ResNet50_Weights
    except ImportError:
        return None
    return list(ResNet50_Weights.DEFAULT.meta["categories"])


def check_names(classes: Sequence[str] | None) -> None:
    """UserError for a name that stands twice."""
    counts = Counter(classes or ())
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise UserError(f"classes has the name {shorten(twice[0])} twice; give each class one name")


def imagenet21k_classes() -> list[str]:
    """WordNet's words for Google's 21,843 classes; with the id where several have the same words.

    The source is named in the file, imagenet21k.txt.gz.
    """
    content = gzip.decompress(Path(__file__).with_name("imagenet21k.txt.gz").read_bytes())
    lines = [line for line in content.decode().splitlines() if not line.startswith("#")]
    pairs = [line.split("\t") for line in lines]
    counts = Counter(words for _, words in pairs)
    return [words if counts[words] == 1 else f"{words} ({wordnet})" for wordnet, words in pairs]
