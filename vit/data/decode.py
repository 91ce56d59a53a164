"""Opening images: any file -> an upright RGB image of 8 bits, or one line that names the file.

The same for training and for prediction:

- Orientation: the EXIF tag is applied.
- Transparency (alpha channel, transparent palette entry or colour): composited on white, except
  the transparent level of a gray PNG of 16 bits.
- 16 bits a channel: the high byte is kept.
- Other photos, such as HEIC: by plugins of Pillow that extensions add.
- 32-bit integers and floats: refused, because their files do not say which value is white.
- Animations and multi-page files: the first frame.
- CMYK, also as Adobe writes it (inverted), 1-bit, palette, YCbCr and LAB: Pillow's conversion.
- ICC profiles: ignored, so an image in Display P3 or Adobe RGB is a little less saturated here.
- A JPEG with damaged bytes inside: wrong pixels from the damage on, because Pillow drops libjpeg's
  warning; only a checksum of the file can tell.

Only Pillow is imported, and none of its global switches is touched.
"""

import io
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from PIL import Image
from PIL.ExifTags import Base
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from vit.errors import UserError
from vit.tables import NotInstalled, made, resolve, rows

if TYPE_CHECKING:  # NumPy and torch
    import numpy as np
    from torch import Tensor

    from vit.data.settings import InputFormat
    from vit.data.sources import ImageSet

    Picture = str | os.PathLike[str] | bytes | Image.Image | np.ndarray
    """A path, a file's bytes, a PIL image, or an array."""

MAX_PIXELS = 178_956_970
"""Images of more pixels (height times width) are refused before they are decoded; the limit is
Pillow's own."""

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation -> the operation that undoes it; 1 and unknown values need none."""

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
"""First bytes of files."""
_REPLACE = "replace or delete it"
_IMPOSTORS = (
    (b"version https://git-lfs", "a Git LFS pointer, not the image itself; run 'git lfs pull'"),
    (b"<!doctype html", f"a web page (HTML), not an image; {_REPLACE}"),
    (b"<html", f"a web page (HTML), not an image; {_REPLACE}"),
    (b"<svg", "an SVG drawing, not a pixel image; convert it to PNG"),
    (b"%pdf", "a PDF document, not an image; convert its pages to PNG"),
)
"""First bytes (lower case, white space stripped) of what often carries an image's name."""

Stream = io.BufferedReader | io.BytesIO
Content = TypeVar("Content")


class ImageError(UserError):
    """An image that cannot be used."""


class NamedBytes(bytes):
    """The bytes of a file, with its `name` for messages."""

    name: str

    def __new__(cls, content: bytes, name: str = "") -> "NamedBytes":  # pickle sets the name later
        named = super().__new__(cls, content)
        named.name = name
        return named


def open_image(source: "Picture") -> Image.Image:
    """An upright RGB image from a path, a file's bytes, a PIL image or a uint8 array.

    Arrays are `h w`, `h w 3` or `h w 4` (alpha last). A PIL image is not modified; if it needs no
    change it is returned itself. Opening the result again changes nothing.

    Raises ImageError if the file cannot be read or decoded, has more than `MAX_PIXELS`, or pixels
    without an agreed range. Of a PIL image that is damaged, Pillow's own.
    """
    if isinstance(source, str | os.PathLike | bytes):
        return read(source, decode)
    if isinstance(source, Image.Image):
        return _upright_rgb(source, name_of(source))
    return _from_array(source)


class Opener(ABC):
    """Reads images that are not RGB: a row of the table `openers`, made without arguments."""

    @abstractmethod
    def open(self, source: "Picture", channels: int) -> "Tensor":
        """float32 `c h w` of a path, a file's bytes, a PIL image or an array. Raises ImageError."""

    @abstractmethod
    def complete(
        self, inputs: "InputFormat", images: "ImageSet", channels: int, remedy: str | None
    ) -> "InputFormat":
        """`inputs`, with mean and std by the training images if it has none.

        Raises ImageError, with the `remedy`, for an image that cannot be read; None leaves it out.
        """


@cache
def opener() -> Opener:
    """The opener of the last row, as that of an installed package; made once in a process."""
    return made([*rows("openers").values()][-1], Opener)


def open_input(source: "Picture", channels: int | None) -> "Image.Image | Tensor":
    """An image as Preprocess takes it: RGB, or float32 `c h w` if `channels` is given.

    `source` is a path, a file's bytes, a PIL image or an array. Raises ImageError.
    """
    return open_image(source) if channels is None else opener().open(source, channels)


def read(
    source: str | os.PathLike[str] | bytes, decoder: Callable[[Stream, bytes, str], Content]
) -> Content:
    """`decoder` of a file's stream, its first 64 bytes, and its name for messages.

    Raises ImageError for all errors of the decoder but MemoryError.
    """
    if isinstance(source, bytes):
        has_name = isinstance(source, NamedBytes)
        name = source.name if has_name else f"image of {len(source):,} bytes"
    else:
        name = os.fsdecode(source)
    head = b""
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as stream:
            head = stream.read(64)
            stream.seek(0)
            return decoder(stream, head, name)
    except (UserError, MemoryError):
        raise
    # Decoders answer damaged files with anything from struct.error to ZeroDivisionError.
    except Exception as error:
        raise ImageError(f"{name}: {_diagnosis(error, head)}") from error


def decode(stream: Stream, head: bytes, name: str) -> Image.Image:
    """A file that begins with `head`, as `open_image` gives it."""
    if b"Exif" not in head:
        # Opened directly: `Image.open` would warn about 90 megapixels, and to silence it for every
        # image costs 15 us and makes Python repeat the warnings of other libraries.
        if head.startswith(JPEG):
            return _upright_rgb(JpegImageFile(stream), name)
        if head.startswith(PNG):
            return _upright_rgb(PngImageFile(stream), name)
    add_plugins(head, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # damaged EXIF fields, size
        return _upright_rgb(Image.open(stream), name)


def add_plugins(head: bytes, name: str) -> None:
    """Adds a plugin to Pillow that reads a file that begins with `head`, if an extension has one.

    ImageError for a plugin that is not installed.
    """
    if not head.startswith((JPEG, PNG)):
        for row in rows("photos").values():
            with suppress(NotInstalled):
                resolve(row)(head, name)


def check_size(height: int, width: int, name: str) -> None:
    """Raises ImageError for an image without pixels, or with more than `MAX_PIXELS`."""
    if height * width > MAX_PIXELS:
        size = f"{height:,} x {width:,} pixels"
        raise ImageError(f"{name}: {size} exceed the limit of {MAX_PIXELS:,}; make it smaller")
    if not height * width:
        raise ImageError(f"{name}: the image has no pixels; {_REPLACE}")


def turned(image: Image.Image) -> Image.Transpose | None:
    """The operation that makes an image upright, by its EXIF tag; None if it is."""
    if image.format == "JXL" and not vars(image)["jpeg"]:
        return None  # the tag is for information; what turns it has been applied (ISO 18181-2)
    return _TRANSPOSE.get(image.getexif().get(Base.Orientation, 1))


def upright(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The image, loaded, converted and turned by its EXIF tag."""
    image.load()
    # After loading, because Pillow turns TIFF files by itself and then drops the tag.
    turn = turned(image)
    image = convert(image)
    if turn is None:
        return image
    image = image.transpose(turn)
    image.info = {}  # the copied EXIF would turn it once more when it is opened again
    return image


def _upright_rgb(image: Image.Image, name: str) -> Image.Image:
    check_size(image.height, image.width, name)
    if image.format == "EPS":  # on which Pillow would run Ghostscript
        raise ImageError(f"{name}: an EPS file is a program, not an image; convert it to PNG")
    tags = vars(image).get("tag_v2") or {}  # of TIFF, some of whose kinds Pillow misreads
    bits, *others = tags.get(Base.BitsPerSample, (1,))
    apart = bool(others) and tags.get(Base.PlanarConfiguration) == 2
    inverted = tags.get(Base.PhotometricInterpretation) == 0
    signed = 2 in tags.get(Base.SampleFormat, ())
    if 8 < bits < 16 or (bits == 16 and (apart or inverted)) or (bits == 8 and signed):
        raise ImageError(f"{name}: a rare kind of TIFF ({bits} bits); save it as PNG")
    return upright(image, lambda loaded: _to_rgb(loaded, name))


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = _high_byte(image)
    elif image.mode == "I" and image.format in ("PNG", "PPM"):
        image = _high_byte(image.convert("I;16"))  # 16 bits in a 32-bit mode
    elif image.mode in ("I", "F"):
        kind = "32-bit integer" if image.mode == "I" else "floating-point"
        raise ImageError(f"{name}: {kind} pixels have no agreed white; save them in 8 or 16 bits")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.new("RGB", rgba.size, "white")
        image.paste(rgba, mask=rgba.getchannel("A"))
    return image if image.mode == "RGB" else image.convert("RGB")


def _high_byte(image: Image.Image) -> Image.Image:
    # 'I;16B' is stored most significant byte first, 'I;16' and 'I;16L' last.
    first = 0 if image.mode == "I;16B" else 1
    return Image.frombytes("L", image.size, image.tobytes()[first::2])


def _from_array(array: "np.ndarray") -> Image.Image:
    if not hasattr(array, "dtype"):
        raise TypeError(f"an image is a path, bytes, a PIL image or array, not {type(array)}")
    shape, kind = array.shape, str(array.dtype)
    usual = len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))
    if kind != "uint8" or not usual or 0 in shape:
        raise ImageError(f"array of {kind}, shape {shape}: pass uint8 of shape (h, w) or (h, w, 3)")
    return _upright_rgb(Image.fromarray(array), f"array of shape {shape}")


def _diagnosis(error: Exception, head: bytes) -> str:
    """Message for an error of decoding a file that begins with `head`."""
    if isinstance(error, OSError) and error.errno is not None:
        return f"cannot be read ({error.strerror}); check the path and its permissions"
    if not head:
        return f"the file is empty (0 bytes); {_REPLACE}"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than the limit of {MAX_PIXELS:,} pixels; make it smaller"
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for signature, message in _IMPOSTORS:
        if start.startswith(signature):
            return message
    if "truncated" in str(error).lower():
        return f"the image is cut short (truncated file); {_REPLACE}"
    if isinstance(error, Image.UnidentifiedImageError):
        return f"not an image of a known format, or its beginning is damaged; {_REPLACE}"
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be decoded ({reason}); {_REPLACE}"


def name_of(image: Image.Image) -> str:
    """A PIL image in a message."""
    return str(vars(image).get("filename") or f"PIL image of mode {image.mode}")
