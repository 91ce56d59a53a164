"""Opening images that are not RGB: any file with 1 to 16 channels -> float32 `c h w`.

8 and 16 bits without a sign are scaled to [0, 1]; all other numbers (floats, integers with a sign,
32 bits) stay as they are. Channels are those of the file; transparency is one.

- PNG: Pillow, and torchvision's decoder for colour of 16 bits, which Pillow cuts to 8.
- TIFF: Pillow if it keeps all values (8 bits, or one channel), else tifffile (`vitkit[tiff]`).
- npy: arrays `h w`, `h w c` or `c h w`, told by the side of c channels, `h w c` first. Nothing is
  unpickled.
- Other formats: Pillow.

Shapes: c channels, h w pixels.
"""

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.console import Meter, say
from vit.data.decode import (
    PNG,
    ImageError,
    Opener,
    Stream,
    add_plugins,
    check_size,
    name_of,
    read,
    turned,
    upright,
)
from vit.data.settings import InputFormat
from vit.data.sources import ImageSet
from vit.errors import UserError, needed, some_of

_NUMPY = b"\x93NUMPY"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_GRAY = 0
"""Colour type of PNG files without colour and transparency."""
_BITS_PER_SAMPLE, _SAMPLE_FORMAT = 258, 339
_TAGS = 274, 262
"""Orientation, and what 0 is: white, if it is 0."""
_WHITE = {"uint8": 255.0, "uint16": 65535.0}
"""What becomes 1; other types have no agreed white."""


class Raster(Opener):
    """Opener of all images with `channels`."""

    def open(self, source: object, channels: int) -> Tensor:
        return open_raster(source, channels)

    def complete(
        self, inputs: InputFormat, images: ImageSet, channels: int, remedy: str | None
    ) -> InputFormat:
        return with_statistics(inputs, images, channels, remedy)


def open_raster(source: object, channels: int) -> Tensor:
    """float32 `c h w` from a path, a file's bytes, a PIL image or an array; such a tensor itself.

    Raises ImageError if it cannot be read, has another number of channels, or NaN or infinity.
    """
    if isinstance(source, Tensor) and source.dtype == torch.float32 and source.ndim == 3:
        return source
    if isinstance(source, str | os.PathLike | bytes):
        name, values = read(source, _decoded)
    elif isinstance(source, Image.Image):
        name = name_of(source)
        values = _pillow_values(source, name)
    else:
        values = np.asarray(source)
        name = f"array of shape {values.shape}"
    planes = _planes(values, channels, name)
    check_size(planes.shape[1], planes.shape[2], name)
    with np.errstate(over="ignore"):  # infinity is refused below
        floats = np.array(planes, dtype=np.float32, order="C")
    if not np.isfinite(floats).all():
        raise ImageError(f"{name}: it has values that are NaN or infinite (as float32)")
    return torch.from_numpy(floats).div_(_WHITE.get(values.dtype.name, 1.0))


def with_statistics(
    inputs: InputFormat, images: ImageSet, channels: int, remedy: str | None
) -> InputFormat:
    """`inputs`; with mean and std of `images` if it has none, which are printed to stderr.

    Values are those of `open_raster`. A constant channel gets a std of 1.

    Raises ImageError, with the `remedy`, if an image cannot be read or has other channels; None
    leaves such images out.
    """
    if inputs.mean is not None and inputs.std is not None:
        return inputs
    if inputs.mean is not None or inputs.std is not None:
        raise UserError("give data.inputs.mean and data.inputs.std together, or null for both")
    mean, std = channel_statistics(images, channels, remedy)
    means, stds = (some_of(f"{value:.4g}" for value in values) for values in (mean, std))
    say(f"channels: {channels}, mean {means}, std {stds} (of {len(images):,} train images)")
    return replace(inputs, mean=tuple(mean), std=tuple(value or 1.0 for value in std))


def channel_statistics(
    images: ImageSet, channels: int, remedy: str | None
) -> tuple[list[float], list[float]]:
    """Mean and standard deviation (of all values, not of a sample) per channel, in float64.

    Images are merged one by one with their counts (Chan, Golub and LeVeque, 1983), which loses no
    digits if the mean is large.
    """
    count, mean, squares = 0, np.zeros(channels), np.zeros(channels)
    with Meter("mean and std of train", len(images), "img") as meter:
        for item in images.items:
            meter.advance(1)
            try:
                values = open_raster(item, channels).numpy().reshape(channels, -1)
            except ImageError as error:
                if remedy is not None:
                    raise ImageError(f"{error}; {remedy}") from error
                continue
            image_mean = values.mean(1, dtype=np.float64)
            spread = np.square(values - image_mean[:, None], dtype=np.float64).sum(1)
            size = values.shape[1]
            total = count + size
            apart = image_mean - mean
            squares += spread + apart**2 * (count * size / total)
            mean += apart * (size / total)
            count = total
    if not count:
        raise UserError("no train image can be read, so there is no mean and std")
    return mean.tolist(), np.sqrt(squares / count).tolist()


def _decoded(stream: Stream, head: bytes, name: str) -> tuple[str, np.ndarray]:
    """The name, and the stored numbers."""
    if head.startswith(_NUMPY):
        values = np.load(stream, allow_pickle=False)
        if values.dtype.kind not in "uifb":
            raise ImageError(f"{name}: an array of {values.dtype}; save one of numbers")
    elif head.startswith(_TIFF):
        values = _tiff(stream, name)
    else:
        add_plugins(head, name)
        with Image.open(stream) as image:
            depth, color = head[24:26] if head.startswith(PNG) else (8, _GRAY)
            deep = depth == 16 and color != _GRAY
            values = _deep_png(image, stream, name) if deep else _pillow_values(image, name)
    return name, values


def _deep_png(image: Image.Image, stream: Stream, name: str) -> np.ndarray:
    """Colour of 16 bits, by torchvision, because Pillow cuts it to 8."""
    check_size(image.height, image.width, name)
    with warnings.catch_warnings():
        # torchvision announces another package for this.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torchvision.io import ImageReadMode, decode_png

        stream.seek(0)
        encoded = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
        values = decode_png(encoded, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()
    if (turn := turned(image)) is None:
        return values
    planes = [Image.fromarray(plane).transpose(turn) for plane in np.moveaxis(values, 2, 0)]
    return np.stack([np.asarray(plane) for plane in planes], 2)


def _tiff(stream: Stream, name: str) -> np.ndarray:
    """Reads by Pillow if it keeps all values, else by tifffile."""
    with suppress(Image.UnidentifiedImageError):
        image = Image.open(stream)
        bits: Any = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))  # pyright: ignore
        whole = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") and max(bits) <= 8
        signed = 2 in image.tag_v2.get(_SAMPLE_FORMAT, ())  # pyright: ignore
        modes = ("I;16", "I;16B", "F", *["I"] * signed)  # "I" has a sign
        alone = len(bits) == 1 and image.mode in modes
        is_signed_byte = signed and max(bits) <= 8
        if alone and not image.tag_v2.get(_TAGS[1], 1):  # pyright: ignore
            raise ImageError(f"{name}: white as 0 in {bits[0]} bits: save it with black as 0")
        if getattr(image, "n_frames", 1) == 1 and (whole or alone) and not is_signed_byte:
            return _pillow_values(image, name)
    tifffile = needed("tifffile", "tiff")
    stream.seek(0)
    with tifffile.TiffFile(stream) as file:
        series = file.series[0]
        orientation, white = (series.keyframe.tags.valueof(tag, 1) for tag in _TAGS)
        if orientation > 1 or not white:
            raise ImageError(f"{name}: orientation {orientation}, or white as 0: save it upright")
        axes = [axis for axis, side in zip(series.axes, series.shape, strict=True) if side > 1]
        values = np.squeeze(series.asarray())
        if {"Y", "X"} <= set(axes) and len(axes) == 3:
            values = np.moveaxis(values, [axes.index("Y"), axes.index("X")], [0, 1])
        return values


def _pillow_values(image: Image.Image, name: str) -> np.ndarray:
    """Upright `h w` or `h w c`, uint8 unless the mode has more bits."""
    check_size(image.height, image.width, name)
    values = np.asarray(upright(image, _without_palette))
    return values.astype(values.dtype.newbyteorder("="))


def _without_palette(image: Image.Image) -> Image.Image:
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # 16 bits in a 32-bit mode
        return image.convert("I;16")
    modes = {"1": "L", "P": "RGB", "PA": "RGBA"}
    return image.convert(modes[image.mode]) if image.mode in modes else image


def _planes(values: np.ndarray, channels: int, name: str) -> np.ndarray:
    """`c h w` of `h w`, `h w c` or `c h w`."""
    shape = values.shape
    if values.ndim == 2:
        values = values[None]
    elif values.ndim == 3 and shape[2] == channels:
        values = values.transpose(2, 0, 1)
    elif values.ndim != 3:
        raise ImageError(f"{name}: an array of shape {shape} is no image; (h, w, c) is one")
    if len(values) == channels:
        return values
    count = 1 if len(shape) == 2 else min(shape[0], shape[2])
    remedy = f"choose --data.channels {count}, or leave the file out"
    raise ImageError(f"{name}: its shape is {shape}, and data.channels={channels}; {remedy}")
