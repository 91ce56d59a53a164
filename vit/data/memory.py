"""Images that stay in memory as uint8, so that an epoch neither reads nor decodes them."""

import math
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

import numpy as np

from vit.console import say
from vit.data.decode import ImageError, open_image
from vit.data.photo import Photo
from vit.data.sources import ImageSet
from vit.hardware import machine_memory, memory_field
from vit.preprocessing import Size

Cache = Literal["auto", "none"]
Fits = Callable[[Size], bool]
"""True if batches can be cut from images of this height and width, without resizing."""

MAX_BYTES, SMALL_PIXELS = 2**30, 64 * 64
"""Largest set that is kept in memory, and pixels of the largest image."""


def in_memory(
    images: ImageSet, fits: Fits, *, name: str, cache: Cache, processes: int
) -> np.ndarray | None:
    """uint8 `n 3 h w`: the images of a set, if `fits` lets batches be cut from them.

    Of files None, unless they are small, readable, of one size, and take little of the memory in
    each of `processes` on this machine; then a line on stderr with their `name`.
    """
    if isinstance(pixels := images.items, np.ndarray):
        if not fits(pixels.shape[1:3]):
            return None
        if pixels.ndim == 3:  # gray: three times the same memory
            return np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:]))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))  # rows lie together
    planes = None
    if cache == "auto" and len(images):
        with suppress(ImageError):  # named when it is asked for
            planes = _opened(images, fits, min(MAX_BYTES, available_memory() // 8) // processes)
    if planes is not None:
        count, _, height, width = planes.shape
        say(
            f"{name}: {count:,} images of {height} x {width} pixels stay in memory "
            f"({planes.nbytes / 2**20:,.0f} MiB; --data.loading.cache none reads them each time)"
        )
    return planes


def _opened(images: ImageSet, fits: Fits, most: int) -> np.ndarray | None:
    """The images of files, if they are small, of one size, and at most `most` bytes."""
    first = Photo(images.items[0])  # of a JPEG only the header is read
    size = first.height, first.width
    shape = (len(images), 3, *size)
    if size[0] * size[1] > SMALL_PIXELS or math.prod(shape) > most or not fits(size):
        return None
    planes = np.empty(shape, np.uint8)
    for index in range(len(images)):
        image = open_image(images.items[index])
        if (image.height, image.width) != size:
            return None
        planes[index] = np.asarray(image).transpose(2, 0, 1)
    return planes


def available_memory() -> int:
    """Bytes that this machine has free; sys.maxsize if unknown."""
    return memory_field("/proc/meminfo", "MemAvailable") or machine_memory() or sys.maxsize
