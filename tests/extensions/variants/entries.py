"""What the contract test knows of a part."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.extensions.variants.numpy_variants import Part
from vit.models.config import ViTConfig


@dataclass(frozen=True)
class Entry:
    """What is true of a part."""

    reference: Callable[[dict[str, Any]], type[Part]]
    """From all options to the same in NumPy."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Another value of each option."""
    macs: Callable[[ViTConfig, dict[str, Any]], int] = lambda config, options: 0
    """Multiply-adds of all layers beyond those of the paper's, of an image."""
    options: dict[str, Any] = field(default_factory=dict)
    """Those of every test, in place of the defaults, which are for larger images."""
    other: tuple[int, int] | None = (48, 40)
    """Another image size that it takes; None: it has a weight for each token, and takes no other.
    Its option `size` is then the grid, and has one value."""
