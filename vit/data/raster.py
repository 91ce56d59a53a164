"""Step 1 for images that are not RGB: any file with 1 to 16 channels -> float32 `c h w`.

Values keep their precision: 8 and 16 bits without a sign are scaled to [0, 1], so that both mean
the same; all other numbers (floats, integers with a sign, 32 bits) stay as they are. Channels are
those of the file: nothing is turned into RGB, and transparency is a channel.

- PNG: Pillow, and torchvision's decoder for colour of 16 bits, which Pillow cuts to 8.
- TIFF: Pillow where it keeps all values (8 bits, or one channel), else tifffile (`vitkit[tiff]`).
- npy: NumPy's arrays, `h w`, `h w c` or `c h w`; the side of c channels says which, and `h w c`
  where both would do. Nothing is unpickled.
- Other formats: Pillow.

Shapes: c channels, h w pixels.
"""

import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.ExifTags import Base
from torch import Tensor

from vit.data.decode import MAX_PIXELS, TRANSPOSE, ImageError, open_image, printable_path
from vit.errors import MESSAGE, shorten
from vit.preprocessing import Preprocess
from vit.reading import special

_NUMPY, _PNG = b"\x93NUMPY", b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_GRAY = 0
"""Colour type of PNG files without colour and transparency."""
_BITS_PER_SAMPLE = 258
_SCALES = {"uint8": 255.0, "uint16": 65535.0}
"""What becomes 1; other types have no agreed white."""


def open_raster(source: Any, channels: int) -> Tensor:
    """float32 `c h w` from a path, a file's bytes, a PIL image, an array or such a tensor.

    Raises:
        ImageError: the file cannot be read, has another number of channels, or NaN or infinity.
    """
    if isinstance(source, Tensor) and source.dtype == torch.float32 and source.ndim == 3:
        return source
    name, values = _values(source, channels)
    planes = _planes(values, channels, name)
    if 0 in planes.shape or planes.shape[1] * planes.shape[2] > MAX_PIXELS:
        size = f"{planes.shape[1]:,} x {planes.shape[2]:,} pixels"
        raise ImageError(f"{name}: {size}; 1 to {MAX_PIXELS:,} are allowed")
    scale = _SCALES.get(values.dtype.name, 1.0)
    with np.errstate(over="ignore"):  # infinity is refused below
        floats = np.ascontiguousarray(planes, dtype=np.float32)
    if values.dtype.kind == "f" and not np.isfinite(floats).all():
        bad = int((~np.isfinite(floats)).sum())
        raise ImageError(
            f"{name}: {bad:,} of its {floats.size:,} values are NaN or infinite (as float32); "
            "replace them by numbers"
        )
    return torch.from_numpy(floats / scale if scale != 1 else floats.copy())


def picture(raster: Tensor, *, stretch: bool = True) -> Image.Image:
    """An RGB image to look at: three channels as red, green and blue, else the first as gray.

    With `stretch` the darkest value becomes black and the brightest white; else 0 and 1 do.
    """
    shown = raster[:3] if len(raster) >= 3 else raster[:1].expand(3, -1, -1)
    if stretch:
        low, high = shown.amin(), shown.amax()
        shown = (shown - low) / (high - low).clamp(min=1e-12)
    pixels = shown.clamp(0, 1) * 255
    return Image.fromarray(pixels.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy())


def model_input(normalized: Tensor, preprocess: Preprocess) -> Image.Image:
    """An RGB image to look at of float32 `c h w` from `Preprocess.normalize`, on the CPU."""
    values = preprocess.denormalize(normalized)
    return picture(values, stretch=preprocess.channels is not None)


def rgb(image: Tensor | Image.Image) -> Image.Image:
    """An RGB image itself, and the `picture` of another one."""
    return picture(image) if isinstance(image, Tensor) else image


def _values(source: Any, channels: int) -> tuple[str, np.ndarray]:
    """What to call the image, and its numbers as they are stored."""
    if isinstance(source, np.ndarray):
        return f"array of shape {source.shape}", source
    if isinstance(source, Image.Image):
        name = printable_path(getattr(source, "filename", "")) or f"PIL image of mode {source.mode}"
        return name, _pillow_values(source, name)
    if isinstance(source, bytes):
        name, data = f"image of {len(source):,} bytes", source
    else:
        path = os.fspath(source)
        name, kind = printable_path(path), special(path)
        if kind is not None:
            raise ImageError(f"{name}: it is {kind}, not an image file; replace or delete it")
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ImageError(
                f"{name}: cannot be read ({error.strerror}); check the path and its permissions"
            ) from error
    return name, _decoded(data, name)


def _decoded(data: bytes, name: str) -> np.ndarray:
    decoder: Callable[[bytes, str], np.ndarray] = _pillow
    if data.startswith(_NUMPY):
        decoder = _numpy
    elif data.startswith(_PNG):
        decoder = _png
    elif data.startswith(_TIFF):
        decoder = _tiff
    try:
        return decoder(data, name)
    except (ImageError, MemoryError):
        raise
    # Decoders answer damaged files with anything from struct.error to ZeroDivisionError.
    except Exception as error:
        reason = shorten(" ".join(str(error).split()), MESSAGE) or type(error).__name__
        raise ImageError(f"{name}: cannot be decoded ({reason}); replace or delete it") from error


def _numpy(data: bytes, name: str) -> np.ndarray:
    values = np.load(io.BytesIO(data), allow_pickle=False)
    if values.dtype.kind not in "uifb":
        raise ImageError(f"{name}: an array of {values.dtype}; save one of numbers")
    return values


def _png(data: bytes, name: str) -> np.ndarray:
    depth, color = data[24:26]  # of the header, which comes first
    if depth < 16 or color == _GRAY:
        return _pillow(data, name)
    with Image.open(io.BytesIO(data)) as header:  # its size, before it takes memory
        _check_size(header, name)
    with warnings.catch_warnings():
        # torchvision announces another package for this, which no other step here needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torchvision.io import ImageReadMode, decode_png

        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return decode_png(encoded, ImageReadMode.UNCHANGED).permute(1, 2, 0).numpy()


def _tiff(data: bytes, name: str) -> np.ndarray:
    try:
        image = Image.open(io.BytesIO(data))
    except Image.UnidentifiedImageError:
        return _tifffile(data, name)
    bits: Any = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))  # pyright: ignore
    whole = image.mode in ("1", "L", "LA", "P", "RGB", "RGBA") and max(bits) <= 8
    alone = len(bits) == 1 and image.mode in ("I;16", "I;16B", "I", "F")
    if getattr(image, "n_frames", 1) == 1 and (whole or alone):
        return _pillow_values(image, name)
    return _tifffile(data, name)


def _tifffile(data: bytes, name: str) -> np.ndarray:
    try:
        import tifffile
    except ImportError as error:
        raise ImageError(
            f"{name}: TIFF files with these channels need tifffile: pip install 'vitkit[tiff]'"
        ) from error
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        series = file.series[0]
        axes = [axis for axis, side in zip(series.axes, series.shape, strict=True) if side > 1]
        values = np.squeeze(series.asarray())
        flat = {"Y", "X"} <= set(axes) and len(axes) <= 3
        if flat and len(axes) == 3:
            values = np.moveaxis(values, [axes.index("Y"), axes.index("X")], [0, 1])
        return values


def _pillow(data: bytes, name: str) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return _pillow_values(image, name)


def _pillow_values(image: Image.Image, name: str) -> np.ndarray:
    """Upright `h w` or `h w c`, uint8 unless the mode has more bits."""
    _check_size(image, name)
    image.load()
    turn = TRANSPOSE.get(image.getexif().get(Base.Orientation, 1))
    image = image if turn is None else image.transpose(turn)
    if image.mode in ("1", "P", "PA"):
        image = image.convert({"1": "L", "P": "RGB", "PA": "RGBA"}[image.mode])
    if image.mode == "I" and image.format in ("PNG", "PPM"):  # 16 bits in a 32-bit mode
        image = image.convert("I;16")
    values = np.asarray(image)
    return values.astype(values.dtype.newbyteorder("="))


def _check_size(image: Image.Image, name: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        open_image(image)  # says so
        raise ImageError(f"{name}: more than {MAX_PIXELS:,} pixels")


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
    there = "1" if len(shape) == 2 else str(min(shape[0], shape[2]))
    raise ImageError(
        f"{name}: it has {there} channel{'s' if there != '1' else ''} (shape {shape}), and "
        f"data.channels={channels} are wanted of every image; choose --data.channels {there}, or "
        "leave the file out"
    )
