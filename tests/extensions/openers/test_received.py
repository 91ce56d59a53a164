"""Pictures that come as bytes: the size of a JPEG XL image, before its plugin decodes it."""

import io
import struct
import time

import numpy as np
import pytest
from PIL import Image

from vit.data.decode import ImageError, NamedBytes
from vit.extensions.openers.received import jxl_sides, open_received

pytest.importorskip("pillow_jxl", reason="needs vitkit[photos]")
SIDES = [(8, 8), (256, 256), (200, 300), (3, 5), (1080, 1920), (600, 500), (13, 700), (264, 8)]
DRAWN = [tuple(map(int, sides)) for sides in np.random.default_rng(0).integers(1, 900, (12, 2))]


def encoded(height: int, width: int, **options: object) -> bytes:
    Image.new("RGB", (width, height), (9, 99, 199)).save(file := io.BytesIO(), "JXL", **options)
    return file.getvalue()


@pytest.mark.parametrize("sides", SIDES + DRAWN)
def test_sides_are_those_of_the_encoder(sides: tuple[int, int]) -> None:
    for options in ({}, {"use_container": True}):
        assert jxl_sides(encoded(*sides, **options)) == sides


def test_a_container_is_read_box_by_box() -> None:
    whole = encoded(40, 30, use_container=True)
    assert whole[4:8] == b"JXL "
    trap = b"jxlc" + encoded(8, 8)[:12]  # within another box
    box = struct.pack(">I4s", 8 + len(trap), b"xml ") + trap
    assert jxl_sides(whole[:12] + box + whole[12:]) == (40, 30)
    at = whole.index(b"jxlc") - 4  # with its size in eight bytes
    long = struct.pack(">I4sQ", 1, b"jxlc", len(whole) - at + 8)
    assert jxl_sides(whole[:at] + long + whole[at + 8 :]) == (40, 30)


@pytest.mark.parametrize("content", (b"", b"\xff", b"\xff\n", b"\0\0\0\x0cJXL \r\n\x87\n", b"JXL"))
def test_what_is_cut_short_is_refused(content: bytes) -> None:
    jxl_sides(content)
    with pytest.raises(ImageError):
        open_received(NamedBytes(content, "x.jxl"), None)


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    content = encoded(4000, 4000, effort=1, lossless=True)
    # The same image by its header, of 2^20 x 2^20 pixels: selector 3, 30 bits, ratio 1.
    bits = 0 | 3 << 1 | (2**20 - 1) << 3 | 1 << 33
    bomb = content[:2] + bits.to_bytes(5, "little") + content[7:]
    start = time.process_time()
    with pytest.raises(ImageError, match="1,048,576 x 1,048,576 pixels exceed"):
        open_received(NamedBytes(bomb, "x.jxl"), None)
    used = time.process_time() - start
    start = time.process_time()
    open_received(NamedBytes(content, "x.jxl"), None)
    assert used < (time.process_time() - start) / 5
