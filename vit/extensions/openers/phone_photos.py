"""HEIC, AVIF and JPEG XL, by plugins of Pillow (the extra `photos`)."""

from functools import cache
from importlib import import_module

from PIL import features

from vit.data.decode import ImageError

_HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Brands of HEIC files."""
_JPEG_XL = b"\xff\n", b"\0\0\0\x0cJXL \r\n\x87\n"


def add_plugin(head: bytes, name: str) -> None:
    """Makes Pillow read a file that begins with `head`; ImageError without its plugin."""
    kind = kind_of_photo(head)
    if kind and not _is_read(kind):
        extra = "pip install 'vitkit[photos]'"
        raise ImageError(f"{name}: a {kind} image needs {extra}; or convert it to JPEG")


def kind_of_photo(head: bytes) -> str | None:
    """HEIC, AVIF or JPEG XL, if a file that begins with `head` is one."""
    if head.startswith(_JPEG_XL):
        return "JPEG XL"
    if head[4:8] != b"ftyp":
        return None
    brands = [head[at : at + 4] for at in range(8, min(64, int.from_bytes(head[:4], "big")), 4)]
    if b"avif" in brands or b"avis" in brands:
        return "AVIF"
    return "HEIC" if any(brand in _HEIC for brand in brands) else None


@cache
def _is_read(kind: str) -> bool:
    """True if Pillow reads the format, with the plugin that this registers if it is installed."""
    try:
        if kind == "HEIC":
            import_module("pillow_heif").register_heif_opener()
        elif kind == "JPEG XL":
            import_module("pillow_jxl")  # registers itself
    except ImportError:
        return False
    return kind != "AVIF" or bool(features.check("avif"))
