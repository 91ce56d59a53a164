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
    shape = (3, image.height, image.width)
    with _seeded(seed):
        result = extra(image)
    form = f"a {type(result).__name__}"
    if isinstance(result, Image.Image):
        form = f"PIL {result.mode} of {result.width} x {result.height}"
        if result.mode in ("RGB", "L") and result.size == image.size:
            return to_tensor(result.convert("RGB"))
    elif isinstance(result, Tensor | np.ndarray):
        kind = str(result.dtype).removeprefix("torch.")
        form = f"{kind} of {' x '.join(map(str, result.shape))}"
        if kind == "uint8" and tuple(result.shape) == shape:
            # A copy, which erasing may change.
            return torch.from_numpy(np.array(np.asarray(result), order="C"))
    raise UserError(
        f"data.augment.extra returned {form}; it must return an RGB PIL image of "
        f"{image.width} x {image.height} pixels, or uint8 of 3 x {image.height} x {image.width}"
    )


def check_change(extra: Change, size: Size) -> None:
    """UserError if `extra` makes two images of one by the same draws, or no image."""
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for seed in range(TRIALS):
        first, second = (changed(extra, Image.fromarray(noise), seed) for _ in range(2))
        if not torch.equal(first, second):
            raise UserError(
                "data.augment.extra makes two images of one by the same seeds, so that no run "
                "could be repeated: it must draw from the global generators of torch, NumPy or "
                "random, or seed its own from one of them in each call"
            )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators, and puts their states back at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: that also seeds every accelerator, from which dropout draws.
            torch.default_generator.manual_seed(seed)
            np.random.seed([seed >> 32, seed % 2**32])
            random.seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
