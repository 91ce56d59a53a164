"""Comparison with the libraries that weights belong to."""

from collections.abc import Callable

import torch
from torch import Tensor


def outputs(model: Callable[[Tensor], Tensor], size: tuple[int, int], channels: int = 3) -> Tensor:
    """Logits in double precision for two random images."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        return model(images)


def assert_same(ours: Tensor, theirs: Tensor, tolerance: float = 1e-9) -> None:
    """Equal up to rounding in double precision, and of a size at which errors would show."""
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() / theirs.abs().max() < tolerance
