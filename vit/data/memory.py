"""Images that stay in memory as uint8, so that an epoch neither reads nor decodes them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
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

MAX_BYTES = 2**30
"""Largest set that is kept in memory by default."""

SMALL_PIXELS = 64 * 64
"""Pixels of the largest image that is kept in memory by default."""


@dataclass
class Decoded:
    """The images of a set, all of one size."""

    planes: np.ndarray
    """uint8 `n 3 h w`; black where an image is unreadable."""
    readable: np.ndarray
    """bool `n`."""

    @property
    def size(self) -> Size:
        return self.planes.shape[2], self.planes.shape[3]

    def __getitem__(self, index: int) -> np.ndarray:
        """uint8 `h w 3`."""
        return self.planes[index].transpose(1, 2, 0)


def in_memory(
    images: ImageSet, fits: Fits, *, name: str, cache: Cache, processes: int
) -> Decoded | None:
    """The images of a set if they stay in memory, in each of `processes` on this machine.

    auto: if they are small, take little of the memory, and `fits` lets batches be cut from them;
    of files a line on stderr with their `name`.
    """
    if isinstance(pixels := images.items, np.ndarray):
        if not fits(pixels.shape[1:3]):
            return None
        if pixels.ndim == 3:  # gray: three times the same memory
            planes = np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:]))
        else:
            planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))  # rows lie together
        return Decoded(planes, np.ones(len(pixels), dtype=bool))
    size = _first_size(images) if cache == "auto" else None
    if size is None or size[0] * size[1] > SMALL_PIXELS or not fits(size):
        return None
    needed = 3 * size[0] * size[1] * len(images)
    if needed > min(MAX_BYTES, available_memory() // 8) // processes:
        return None
    decoded = _decoded(images, size)
    if decoded is not None:
        say(
            f"{name}: {len(images):,} images of {size[0]} x {size[1]} pixels stay in memory "
            f"({needed / 2**20:,.0f} MiB; --data.loading.cache none reads them each time)"
        )
    return decoded


def _first_size(images: ImageSet) -> Size | None:
    """Height and width of the first readable image."""
    for index in range(len(images)):
        try:
            photo = Photo(images.items[index])  # of a JPEG only the header is read
        except ImageError:
            continue
        return photo.height, photo.width
    return None


def _decoded(images: ImageSet, size: Size) -> Decoded | None:
    """The images, unless one is of another size."""
    planes = np.zeros((len(images), 3, *size), np.uint8)
    readable = np.zeros(len(images), dtype=bool)
    for index in range(len(images)):
        try:
            image = open_image(images.items[index])
        except ImageError:
            continue  # named when it is asked for
        if (image.height, image.width) != size:
            return None
        planes[index] = np.asarray(image).transpose(2, 0, 1)
        readable[index] = True
    return Decoded(planes, readable)


def available_memory() -> int:
    """Bytes that this machine has free; sys.maxsize if unknown."""
    return memory_field("/proc/meminfo", "MemAvailable") or machine_memory() or sys.maxsize
