"""Small trees of JPEG files, and PNG files by their specification."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

MakeTree = Callable[[Path, dict[str, int]], Path]


@pytest.fixture
def make_tree() -> MakeTree:
    """make_tree(root, {"train/cat": 3}) writes three JPEGs of 8 x 10 pixels, all different."""

    def make(root: Path, counts: dict[str, int]) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        for number, (folder, count) in enumerate(counts.items()):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = bytes((i * (3 + number) + 12 * index) % 256 for i in range(10 * 8 * 3))
                Image.frombytes("RGB", (10, 8), pixels).save(root / folder / f"{index}.jpg")
        return root

    return make


def png(
    width: int, height: int, rows: list[bytes], *, depth: int, colour: int, chunks: bytes = b""
) -> bytes:
    """A PNG file, written from its specification rather than by Pillow."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + crc

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    body = chunk(b"IHDR", header) + chunks + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
