"""Images in memory, of which whole batches are cut: arrays, and small files."""

import math
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch

from vit.console import say
from vit.data.decode import ImageError, open_image
from vit.data.photo import Photo
from vit.data.sources import ImageSet
from vit.data.transforms import TrainTransform
from vit.hardware import memory_field
from vit.preprocessing import Preprocess, Size

MAX_BYTES, SMALL_PIXELS = 2**30, 64 * 64
"""Largest set that is kept in memory, and pixels of the largest image."""


def in_memory(
    images: ImageSet,
    preprocess: Preprocess,
    augment: TrainTransform | None,
    *,
    name: str,
    keeps: bool,
    processes: int,
) -> np.ndarray | None:
    """uint8 `n 3 h w`: the images of a set, if windows of them are all that is wanted.

    None if they are to be resized, or changed in another way. Files are read if `keeps`, and if
    they are small, readable, of one size, and take little of the memory in each of `processes` on
    this machine; then a line on stderr has their `name`.
    """

    def fits(size: Size) -> bool:
        image = torch.empty(3, *size)  # returned itself where nothing is to be resized
        if augment is None:
            return preprocess.fit(image) is image
        return augment.takes_batches and augment.fit(image, preprocess.image_size) is image

    if isinstance(pixels := images.items, np.ndarray):
        if preprocess.channels is not None or not fits(pixels.shape[1:3]):
            return None
        if pixels.ndim == 3:  # gray: three times the same memory
            return np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:]))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))  # rows lie together
    planes = None
    if keeps and preprocess.channels is None and len(images):
        with suppress(ImageError):  # named when it is asked for
            planes = _opened(images, fits, min(MAX_BYTES, available_memory() // 8) // processes)
    if planes is not None:
        count, _, height, width = planes.shape
        say(
            f"{name}: {count:,} images of {height} x {width} pixels stay in memory "
            f"({planes.nbytes / 2**20:,.0f} MiB; --data.loading.cache none reads them each time)"
        )
    return planes


def _opened(images: ImageSet, fits: Callable[[Size], bool], most: int) -> np.ndarray | None:
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
    """Bytes that this machine has free; sys.maxsize if unknown, as without /proc."""
    return memory_field("/proc/meminfo", "MemAvailable") or sys.maxsize
