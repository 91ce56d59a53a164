"""A user's own change of training images: its draws, and what it may return.

Shapes: c channels, h w pixels.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.data.transforms import Mean, TrainTransform
from vit.errors import UserError
from vit.extensions.recipes.changes import ColorChange, to_image
from vit.preprocessing import Size, to_tensor
from vit.seeds import seeded

TRIALS = 10
"""Pairs of equal draws that a change is tried on; one that acts on half of the images and has a
generator of its own passes as many by chance once in a thousand times."""


class OwnChange(ColorChange):
    """The row of the table of changes for data.augment.extra."""

    name = "extra"

    def __init__(self, transform: TrainTransform) -> None:
        assert transform.extra is not None
        self.extra = transform.extra

    def check(self, image_size: Size, channels: int | None) -> None:
        """UserError if it makes two images of one by the same draws, or no image."""
        super().check(image_size, channels)
        noise = np.random.default_rng(0).integers(0, 256, (3, *image_size), dtype=np.uint8)
        for seed in range(TRIALS):
            first, second = (self(torch.from_numpy(noise), seed, (), ()) for _ in range(2))
            if not torch.equal(first, second):
                raise UserError(
                    "data.augment.extra makes two images of one by the same seeds: it must draw "
                    "from the global generators of torch, NumPy or random, or seed its own from "
                    "them"
                )

    def __call__(self, pixels: Tensor, bits: int, mean: Mean, std: Mean) -> Tensor:
        """UserError for a result of another size. Draws from the global generators of torch (on the
        CPU), NumPy and Python follow from `bits`."""
        image = to_image(pixels)
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
