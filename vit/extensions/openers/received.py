"""Pictures that come as bytes from anyone: photos alone, as Pillow reads many other formats."""

from typing import Any

from vit.data.decode import JPEG, PNG, ImageError, NamedBytes, check_size, open_input
from vit.extensions.openers.phone_photos import kind_of_photo

PHOTOS = (JPEG, PNG, b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""First bytes of JPEG, PNG, GIF, BMP and TIFF."""
SCAN, MAX_SCANS = b"\xff\xda", 100
"""Marker of a scan of a JPEG, each decoded over the whole image; photos have 1 to 20."""
ARRAY = b"\x93NUMPY"


RATIOS = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width over height by its number; 0 for a width of its own."""


def open_received(content: NamedBytes, channels: int | None) -> Any:
    """An image as Preprocess takes it.

    Raises ImageError as `open_input`, and for formats that are none of photos, or of arrays for a
    model with `channels`.
    """
    is_webp = content.startswith(b"RIFF") and content[8:12] == b"WEBP"
    is_photo = content.startswith(PHOTOS) or is_webp
    is_array = channels is not None and content.startswith(ARRAY)
    if content and not (is_photo or is_array or kind_of_photo(content[:64])):
        kinds = "JPEG, PNG, WebP, BMP, GIF, TIFF, HEIC, AVIF or JPEG XL"
        raise ImageError(f"{content.name}: not a file of {kinds}")
    if (sides := jxl_sides(content)) is not None:  # its plugin decodes before it tells the size
        check_size(*sides, content.name)
    if content.startswith(JPEG) and content.count(SCAN) > MAX_SCANS:
        raise ImageError(f"{content.name}: a JPEG of more than {MAX_SCANS} scans; save it again")
    return open_input(content, channels)


def jxl_sides(content: bytes) -> tuple[int, int] | None:
    """Height and width by the header of a JPEG XL image; None for other files.

    SizeHeader of ISO/IEC 18181-1, in a codestream or in the first part of one in a container.
    """
    if content.startswith(b"\0\0\0\x0cJXL "):
        at, begin, kind = 0, 0, b""
        while kind not in (b"jxlc", b"jxlp") and at + 8 <= len(content):
            size, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
            begin = at + 8
            if size == 1:  # the next eight bytes have it
                size, begin = int.from_bytes(content[at + 8 : at + 16], "big"), at + 16
            at += max(size, 8)
        content = content[begin + 4 * (kind == b"jxlp") :]
    if not content.startswith(b"\xff\n"):
        return None
    bits = int.from_bytes(content[2:14], "little")

    def take(count: int) -> int:
        nonlocal bits
        value, bits = bits & (1 << count) - 1, bits >> count
        return value

    small = take(1)

    def side() -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    height, (over, under) = side(), RATIOS[take(3)]
    return height, height * over // under if over else side()
