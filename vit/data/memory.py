"""Images that stay in memory as uint8: where they do, an epoch neither reads nor decodes them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from vit.data.decode import ImageError, open_image
from vit.data.photo import Photo
from vit.data.sources import ImageSet, PathList
from vit.data.windows import Windows, planar
from vit.errors import UserError
from vit.hardware import available_memory

Cache = Literal["auto", "ram", "none"]

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

    def __getitem__(self, index: int) -> np.ndarray:
        """uint8 `h w 3`."""
        return self.planes[index].transpose(1, 2, 0)

    def note(self, name: str) -> str:
        """One line: what is kept, and what it takes."""
        count, _, height, width = self.planes.shape
        return (
            f"{name}: {count:,} images of {height} x {width} pixels stay in memory "
            f"({self.planes.nbytes / 2**20:,.0f} MiB; --data.loading.cache none reads them each "
            "time)"
        )


def automatic_limit(processes: int) -> int:
    """Bytes that a set may take in each of `processes` processes of this machine."""
    return min(MAX_BYTES, available_memory() // 8) // processes


def in_memory(
    images: ImageSet, windows: Windows | None, *, cache: Cache, processes: int
) -> Decoded | None:
    """The images of a set where they stay in memory, in each of `processes` on this machine.

    auto: if `windows` can then be cut from whole batches, and they are small and fit into
    `automatic_limit`.

    Raises:
        UserError: cache is ram, and they have several sizes or would take half of the free memory.
    """
    if isinstance(images.items, np.ndarray):
        fits = windows is not None and windows.fits(*images.items.shape[1:3])
        return decoded_arrays(images.items) if fits else None
    if cache == "none" or not len(images):
        return None
    if cache == "ram":
        return _all_decoded(images, processes)
    size = None if windows is None else _common_size(images, SMALL_PIXELS)
    if size is None or windows is None or not windows.fits(*size):
        return None
    if 3 * size[0] * size[1] * len(images) > automatic_limit(processes):
        return None
    decoded, other = _decode(images, size)
    return decoded if other is None else None


def _all_decoded(images: ImageSet, processes: int) -> Decoded:
    size = _common_size(images)
    if size is None:
        raise UserError("cache=ram needs images of one size, which these are not; use cache=none")
    needed = 3 * size[0] * size[1] * len(images)
    if needed > available_memory() // 2 // processes:
        raise UserError(
            f"cache=ram would take {needed / 2**30:,.1f} GiB for {len(images):,} images of "
            f"{size[0]} x {size[1]} pixels, more than half of the free memory; use cache=none"
        )
    decoded, other = _decode(images, size)
    if other is not None:
        raise UserError(
            f"cache=ram needs images of one size, and {images.names[other]} is not of {size[0]} x "
            f"{size[1]} pixels; use cache=none"
        )
    return decoded


def decoded_arrays(pixels: np.ndarray) -> Decoded:
    """uint8 `n h w 3` or `n h w` that are in memory already."""
    return Decoded(planar(pixels), np.ones(len(pixels), dtype=bool))


def _common_size(images: ImageSet, largest: int | None = None) -> tuple[int, int] | None:
    """Height and width on which a few images agree, if they have at most `largest` pixels."""
    sizes = set()
    for index in np.linspace(0, len(images) - 1, min(8, len(images))).astype(int):
        try:
            photo = Photo(images.items[index])  # of a JPEG only the header is read
        except ImageError:
            continue
        sizes.add((photo.height, photo.width))
        if largest is not None and photo.height * photo.width > largest:
            return None
    return sizes.pop() if len(sizes) == 1 else None


def _decode(images: ImageSet, size: tuple[int, int]) -> tuple[Decoded, int | None]:
    """The images, and the index of the first that is of another size, at which it stops."""
    assert isinstance(images.items, PathList)
    planes = np.zeros((len(images), 3, *size), np.uint8)
    decoded = Decoded(planes, np.zeros(len(images), dtype=bool))
    for index, path in enumerate(images.items):
        try:
            image = open_image(path)
        except ImageError:
            continue  # named when it is asked for
        if (image.height, image.width) != size:
            return decoded, index
        planes[index] = np.asarray(image).transpose(2, 0, 1)
        decoded.readable[index] = True
    return decoded, None
