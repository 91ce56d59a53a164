"""A user's own change of training images: its draws, and what it may return.

Shapes: c channels, h w pixels.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.errors import UserError
from vit.preprocessing import Size, to_tensor
from vit.seeds import seeded

TRIALS = 10
"""Pairs of equal draws that a change is tried on; one that acts on half of the images and has a
generator of its own passes as many by chance once in a thousand times."""


@dataclass(frozen=True)
class OwnChange:
    """The row of the table of changes for data.augment.extra."""

    extra: Callable[[Image.Image], object]
    """RGB image -> PIL image, or uint8 `c h w`, of the same size."""

    def check(self, image_size: Size) -> None:
        """UserError if it makes two images of one by the same draws, or no image."""
        noise = np.random.default_rng(0).integers(0, 256, (*image_size, 3), dtype=np.uint8)
        for seed in range(TRIALS):
            first, second = (self(Image.fromarray(noise), seed) for _ in range(2))
            if not torch.equal(first, second):
                raise UserError(
                    "data.augment.extra makes two images of one by the same seeds: it must draw "
                    "from the global generators of torch, NumPy or random, or seed its own from "
                    "them"
                )

    def __call__(self, image: Image.Image, bits: int) -> Tensor:
        """UserError for a result of another size. Draws from the global generators of torch (on the
        CPU), NumPy and Python follow from `bits`."""
        with _all_seeded(bits):
            result = self.extra(image)
        return _pixels(result, image)


def _pixels(result: object, image: Image.Image) -> Tensor:
    if isinstance(result, Image.Image) and result.mode in ("RGB", "L"):
        result = to_tensor(result.convert("RGB"))
    kind = str(getattr(result, "dtype", type(result).__name__)).removeprefix("torch.")
    shape, right = tuple(getattr(result, "shape", ())), (3, image.height, image.width)
    if kind != "uint8" or shape != right:
        raise UserError(
            f"data.augment.extra returned {kind} of shape {shape}; it must return an RGB PIL image "
            f"of the size that it gets, or uint8 of shape {right}"
        )
    # A copy, which erasing may change.
    return torch.from_numpy(np.array(np.asarray(result), order="C"))


@contextmanager
def _all_seeded(seed: int) -> Iterator[None]:
    """Seeds the generators of torch, NumPy and Python, and puts their states back at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    np.random.seed([seed >> 32, seed % 2**32])
    random.seed(seed)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
