"""A user's own change of training images: its draws, and what it may return.

Shapes: c channels, h w pixels.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.errors import UserError
from vit.preprocessing import Size, to_tensor

Change = Callable[[Image.Image], Any]
"""RGB image -> PIL image, or uint8 `c h w`, of the same size."""

TRIALS = 10
"""Pairs of equal draws that a change is tried on; one that acts on half of the images and has a
generator of its own passes as many by chance once in a thousand times."""


def changed(extra: Change, image: Image.Image, seed: int) -> Tensor:
    """uint8 `c h w` that `extra` makes of an RGB image; UserError if it is of another size.

    Its draws from the global generators of torch (on the CPU), NumPy and Python follow from `seed`
    (64 bits).
    """
    with _all_seeded(seed):
        result = extra(image)
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


def check_change(extra: Change, size: Size) -> None:
    """UserError if `extra` makes two images of one by the same draws, or no image."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for seed in range(TRIALS):
        first, second = (changed(extra, Image.fromarray(noise), seed) for _ in range(2))
        if not torch.equal(first, second):
            raise UserError(
                "data.augment.extra makes two images of one by the same seeds: it must draw from "
                "the global generators of torch, NumPy or random, or seed its own from them"
            )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds torch's CPU generator, and puts its state back at the end.

    Not `torch.manual_seed`: that also seeds every accelerator, from which dropout draws.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


@contextmanager
def _all_seeded(seed: int) -> Iterator[None]:
    """Likewise the generators of NumPy and Python."""
    python, numpy = random.getstate(), np.random.get_state()
    np.random.seed([seed >> 32, seed % 2**32])
    random.seed(seed)
    try:
        with seeded(seed):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
