"""Opening and cropping photos in training: decode no more of a JPEG than a crop needs.

Entropy decoding takes four fifths of the time of a 500-pixel photo; only below a crop can it be
skipped. A crop at least twice as large as its target is decoded at 1/2, 1/4 or 1/8 of the size.
Crops are resized in uint8 by torch, three times as fast as Pillow and within 1 of 255 of it.
"""

import io
import os
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import torch.nn.functional as F
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vit.data.decode import JPEG, MAX_PIXELS, Stream, decode, open_image, read, turned
from vit.preprocessing import (
    Interpolation,
    cover_size,
    interleaved,
    is_strip,
    resize_to_cover,
)

if TYPE_CHECKING:
    from vit.data.decode import Picture

Box = tuple[int, int, int, int]
"""Top, left, height and width in pixels."""

_END = b"\xff\xd9"
"""Last bytes of a JPEG file."""

_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""A marker other than those that belong in compressed data: escaped 255, restart, filling."""


class Photo:
    """An image of which a part is decoded at the first use.

    That holds for ordinary JPEG files: upright, gray or YCbCr, and with a JPEG's last bytes. All
    else, and a JPEG whose part cannot be decoded, is opened by `vit.data.decode.open_image`.
    """

    def __init__(self, source: "Picture") -> None:
        """`source` and errors are those of `open_image`."""
        self._source = source
        is_file = isinstance(source, str | os.PathLike | bytes)
        whole = read(source, _opened) if is_file else open_image(source)
        self._jpeg = whole if isinstance(whole, _Jpeg) else None
        self._image = None if isinstance(whole, _Jpeg) else whole
        self.height, self.width = whole.height, whole.width

    def image(self) -> Image.Image:
        """The whole image as `open_image` gives it."""
        if self._image is None:
            whole = self._decoded(1, self.height)
            self._image = open_image(self._source if whole is None else whole)
        return self._image

    def crop(self, box: Box, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
        """The part in `box`, resized with antialiasing to uint8 `c h w` of `size`.

        In a JPEG decoded at 1/n the box moves to whole pixels of the small image, by at most half
        a pixel of the result.
        """
        top, left, height, width = box
        scale = scale_of(height, width, size)
        part = self._decoded(scale, top + height)
        if part is None:
            return _resized(self.image(), box, size, interpolation)
        first_row, first_column = round(top / scale), round(left / scale)
        rows = min(round((top + height) / scale), part.height) - first_row
        columns = min(round((left + width) / scale), part.width) - first_column
        return _resized(part, (first_row, first_column, rows, columns), size, interpolation)

    def cover(self, size: tuple[int, int], interpolation: Interpolation) -> Image.Image:
        """The whole image by `vit.preprocessing.resize_to_cover`."""
        if not is_strip(self.height, self.width):
            height, width = cover_size(self.height, self.width, size)
            scale = scale_of(self.height, self.width, (height, width))
            small = self._decoded(scale, self.height) if scale > 1 else None
            if small is not None:
                # The small image is rounded up: part of its last pixels lies outside.
                box = (0, 0, self.width / scale, self.height / scale)
                kind = Image.Resampling[interpolation.upper()]
                small = small.resize((width, height), kind, box=box)
                return small if small.mode == "RGB" else small.convert("RGB")
        return resize_to_cover(self.image(), size, interpolation)

    def _decoded(self, scale: int, bottom: int) -> Image.Image | None:
        """The rows above `bottom` at 1 / `scale` of the size; None if they cannot be decoded."""
        if self._jpeg is None:
            return None
        image = self._jpeg.opened()
        if scale > 1:
            image.draft(image.mode, (self.width // scale, self.height // scale))
        rows = -(-bottom // scale)
        stops = self._jpeg.one_scan and rows < image.height
        if stops:
            image.tile = [tile._replace(extents=(0, 0, image.width, rows)) for tile in image.tile]
        try:
            image.load()
        except Exception:
            # The decoder complains of the rows left. If it has failed before them, the last row is
            # black. (So may be that of the photo, which then is decoded whole.)
            if not stops or image.crop((0, rows - 1, image.width, rows)).getbbox() is None:
                return None
        return image


class _Jpeg:
    """A JPEG file whose header has been read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        image = self._image = JpegImageFile(io.BytesIO(data))
        self.width, self.height = image.size
        self.is_ordinary = (
            image.mode in ("RGB", "L")
            and 0 < image.width * image.height <= MAX_PIXELS
            and bool(image.tile)
            and _is_upright(image)
        )
        assert image.fp is not None
        # Without other markers rows follow each other, and none depends on those below.
        self.one_scan = _MARKER.search(data, image.fp.tell(), len(data) - len(_END)) is None

    def opened(self) -> JpegImageFile:
        """The image, not decoded yet. Each can be decoded once, so the next call reads it again."""
        image, self._image = self._image, None
        return image or JpegImageFile(io.BytesIO(self._data))


def _opened(stream: Stream, head: bytes, name: str) -> _Jpeg | Image.Image:
    """A file that `Photo` may decode in part, or its image."""
    if head.startswith(JPEG):
        data = stream.read()
        if data.endswith(_END):
            with suppress(Exception):  # `decode` says what is wrong
                jpeg = _Jpeg(data)
                if jpeg.is_ordinary:
                    return jpeg
        stream.seek(0)
    return decode(stream, head, name)


def _is_upright(image: Image.Image) -> bool:
    if "exif" not in image.info and "xmp" not in image.info:
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return turned(image) is None


def scale_of(height: int, width: int, size: tuple[int, int]) -> int:
    """The largest of 1, 2, 4 and 8 at which a divided part still covers `size`."""
    scale = 8
    while scale > 1 and (height < scale * size[0] or width < scale * size[1]):
        scale //= 2
    return scale


def _resized(
    image: Image.Image, box: Box, size: tuple[int, int], interpolation: Interpolation
) -> Tensor:
    top, left, height, width = box
    corners = (left, top, left + width, top + height)
    part = image if corners == (0, 0, *image.size) else image.crop(corners)
    planes = interleaved(part if part.mode == "RGB" else part.convert("RGB")).permute(2, 0, 1)
    if size != (height, width):
        planes = F.interpolate(planes[None], size, mode=interpolation, antialias=True)[0]
    return planes.contiguous()
