"""Steps 1 and 2 for small images in memory: the windows of a whole batch, without opening any.

A window's place and its mirroring are a hash of (seed, epoch, index, repeat), computed for all keys
of a batch at once: to seed a generator for each image takes longer than to cut it. Images that are
read one by one get the same windows, so that it does not matter where they are kept.

Shapes: n images in memory, b batch, c channels, h w pixels of the window.
"""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.preprocessing import (
    Interpolation,
    Preprocess,
    cover_size,
    is_strip,
    resize,
    resize_to_cover,
)

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(value) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_REPEAT_BITS = np.uint64(40)
_LOW_31 = np.uint64(2**31 - 1)


def key_bits(seed: int, keys: np.ndarray) -> np.ndarray:
    """int64 `b 3` of (epoch, index, repeat) -> uint64 `b`, 64 well mixed bits each.

    The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over seed and epoch, then over
    index and repeat.
    """
    epoch, index, repeat = keys.astype(np.uint64).T
    start = _mixed(np.full(1, seed % 2**64, dtype=np.uint64))
    return _mixed(_mixed(start ^ epoch) ^ (index | repeat << _REPEAT_BITS))


def _mixed(bits: np.ndarray) -> np.ndarray:
    bits = bits + _GOLDEN
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of `size` (height, width), out of images that were resized first."""

    size: tuple[int, int]
    resized: tuple[int, int]
    """Height and width that the image is resized to: exactly, or so that it covers them."""
    squash: bool = False
    """Whether exactly, without regard to the aspect ratio."""
    padding: int = 0
    """Pixels around the resized image, black ones."""
    reflect: bool = False
    """Its own, mirrored at its edges, instead."""
    random: bool = False
    """Any window, or the one in the middle."""
    flip: bool = False
    """Mirrors every second window."""
    interpolation: Interpolation = "bilinear"

    @property
    def fixed(self) -> bool:
        """Whether nothing is random."""
        return not self.random and not self.flip

    def resize(self, image: Image.Image) -> Image.Image:
        """What comes before the window."""
        fit = resize if self.squash else resize_to_cover
        return fit(image, self.resized, self.interpolation)

    def fits(self, height: int, width: int) -> bool:
        """Whether images of this size are resized to what they are."""
        if self.squash or is_strip(height, width):
            return self.resized == (height, width)
        return cover_size(height, width, self.resized) == (height, width)

    def cut(
        self, planes: np.ndarray, indices: np.ndarray, bits: np.ndarray | None = None
    ) -> Tensor:
        """uint8 `n c height width`, resized, and int64 `b` -> uint8 `b c h w`.

        `bits` is uint64 `b` of `key_bits`; only what is random needs it.
        """
        height, width = self.size
        if self.fixed and planes.shape[2:] == self.size:
            return torch.from_numpy(np.ascontiguousarray(planes[indices]))
        tops, lefts, flips = self._places(planes.shape[2:], len(indices), bits)
        if self.reflect:
            p = self.padding
            planes = np.pad(planes[indices], ((0, 0), (0, 0), (p, p), (p, p)), mode="reflect")
            indices, tops, lefts = np.arange(len(indices)), tops + p, lefts + p
        bottoms, rights = tops + height, lefts + width
        # What of the window lies inside the image, in coordinates of either.
        first_row, first_column = np.maximum(tops, 0), np.maximum(lefts, 0)
        end_row = np.minimum(bottoms, planes.shape[2])
        end_column = np.minimum(rights, planes.shape[3])
        edges = (first_row, end_row, first_column, end_column)
        inside = (first_row - tops, end_row - tops, first_column - lefts, end_column - lefts)
        windows = np.zeros((len(indices), 3, height, width), np.uint8)
        mirrored = windows[..., ::-1]
        columns = [values.tolist() for values in (indices, flips, *edges, *inside)]
        # One slice an image is faster than any gather over the batch.
        for i, (index, flip, a, b, c, d, e, f, g, h) in enumerate(zip(*columns, strict=True)):
            (mirrored if flip else windows)[i, :, e:f, g:h] = planes[index, :, a:b, c:d]
        return torch.from_numpy(windows)

    def cut_one(self, image: Image.Image, bits: np.ndarray) -> Tensor:
        """RGB image and uint64 `1` -> uint8 `c h w`: as in a batch."""
        return self.cut(planar(np.asarray(self.resize(image))[None]), np.zeros(1, int), bits)[0]

    def _places(
        self, shape: tuple[int, ...], count: int, bits: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Top, left (below 0 in the padding) and whether to mirror, int64 `count` each."""
        height, width = (have - want for have, want in zip(shape, self.size, strict=True))
        if bits is None:
            assert self.fixed
            bits = np.zeros(count, np.uint64)
        if self.random:
            # 32 bits become a row, 31 a column; the last one is the coin.
            border = 2 * self.padding + 1
            tops = _scaled(bits >> np.uint64(32), 32, height + border) - self.padding
            lefts = _scaled((bits >> np.uint64(1)) & _LOW_31, 31, width + border) - self.padding
        else:
            tops, lefts = (np.full(count, round(pixels / 2)) for pixels in (height, width))
        flips = (bits & np.uint64(1)).astype(int) if self.flip else np.zeros(count, int)
        return tops, lefts, flips


def _scaled(bits: np.ndarray, width: int, choices: int) -> np.ndarray:
    """Numbers of `width` bits -> int64 from 0 to `choices` - 1, equally often."""
    return (bits * np.uint64(choices) >> np.uint64(width)).astype(int)


def evaluation_windows(preprocess: Preprocess) -> Windows:
    """The windows that `preprocess` cuts."""
    return Windows(
        size=preprocess.image_size,
        resized=preprocess.resized,
        squash=preprocess.resize == "squash",
        interpolation=preprocess.interpolation,
    )


def planar(pixels: np.ndarray) -> np.ndarray:
    """uint8 `n h w 3` or `n h w` -> `n 3 h w`, whose rows lie together as in a batch."""
    if pixels.ndim == 3:
        return np.broadcast_to(pixels[:, None], (len(pixels), 3, *pixels.shape[1:]))
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
