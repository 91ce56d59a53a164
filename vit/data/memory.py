"""Images that stay in memory as uint8, so that an epoch neither reads nor decodes them."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from vit.data.decode import ImageError, open_image
from vit.data.photo import Photo
from vit.data.sources import ImageSet
from vit.errors import UserError
from vit.hardware import memory_field
from vit.preprocessing import Size

Cache = Literal["auto", "ram", "none"]
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

    def note(self, name: str) -> str:
        """One line: the images, and the memory that they take."""
        height, width = self.size
        return (
            f"{name}: {len(self.planes):,} images of {height} x {width} pixels stay in memory "
            f"({self.planes.nbytes / 2**20:,.0f} MiB; --data.loading.cache none reads them each "
            "time)"
        )


def in_memory(images: ImageSet, fits: Fits, *, cache: Cache, processes: int) -> Decoded | None:
    """The images of a set if they stay in memory, in each of `processes` on this machine.

    auto: if they are small, take little of the memory, and `fits` lets batches be cut from them.

    Raises:
        UserError: cache is ram, and they have several sizes or would take half of the free memory.
    """
    if isinstance(pixels := images.items, np.ndarray):
        if not fits(pixels.shape[1:3]):
            return None
        if pixels.ndim == 3:  # gray: three times the same memory
            planes = np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:]))
        else:
            planes = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))  # rows lie together
        return Decoded(planes, np.ones(len(pixels), dtype=bool))
    size = None if cache == "none" else _first_size(images)
    if size is None:
        return None
    needed, free = 3 * size[0] * size[1] * len(images), available_memory()
    if cache == "auto":
        small = size[0] * size[1] <= SMALL_PIXELS
        enough = needed <= min(MAX_BYTES, free // 8) // processes
        return _decoded(images, size)[0] if small and enough and fits(size) else None
    if needed > free // 2 // processes:
        raise UserError(
            f"cache=ram would take {needed / 2**30:,.1f} GiB for {len(images):,} images of "
            f"{size[0]} x {size[1]} pixels, more than half of the free memory; use cache=none"
        )
    decoded, other = _decoded(images, size)
    if decoded is None:
        raise UserError(
            f"cache=ram needs images of one size, and {images.names[other]} is not of {size[0]} x "
            f"{size[1]} pixels; use cache=none"
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


def _decoded(images: ImageSet, size: Size) -> tuple[Decoded | None, int]:
    """The images; or None, and the index of the first that is of another size."""
    planes = np.zeros((len(images), 3, *size), np.uint8)
    readable = np.zeros(len(images), dtype=bool)
    for index in range(len(images)):
        try:
            image = open_image(images.items[index])
        except ImageError:
            continue  # named when it is asked for
        if (image.height, image.width) != size:
            return None, index
        planes[index] = np.asarray(image).transpose(2, 0, 1)
        readable[index] = True
    return Decoded(planes, readable), -1


def available_memory() -> int:
    """Bytes that this process may still take, within its container; sys.maxsize if unknown."""
    free = memory_field("/proc/meminfo", "MemAvailable") or sys.maxsize
    return min(free, _free_in_container())


def _free_in_container() -> int:
    """Bytes that control groups, version 2, leave."""
    group = Path("/sys/fs/cgroup")
    try:
        free = int((group / "memory.max").read_text())
        free -= int((group / "memory.current").read_text())
        # The cache of files is dropped when the memory is needed.
        cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):  # no limit
        return sys.maxsize
    return max(0, free + int(cached[1] if cached else 0))
