"""Pictures that come as bytes from anyone: photos alone, as Pillow reads many other formats."""

from typing import Any

from vit.data.decode import JPEG, PNG, ImageError, NamedBytes, open_input
from vit.extensions.openers.phone_photos import kind_of_photo

PHOTOS = (JPEG, PNG, b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of JPEG, PNG, GIF, BMP and TIFF."""
ARRAY = b"\x93NUMPY"


def open_received(content: NamedBytes, channels: int | None) -> Any:
    """An image as Preprocess takes it.

    Raises ImageError as `open_input`, and for formats that are none of photos, or of arrays for a
    model with `channels`.
    """
    is_photo = content.startswith(PHOTOS) or content[8:12] == b"WEBP"
    is_array = channels is not None and content.startswith(ARRAY)
    if content and not (is_photo or is_array or kind_of_photo(content[:64])):
        kinds = "JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or JPEG XL"
        raise ImageError(f"{content.name}: not a file of {kinds}")
    return open_input(content, channels)
