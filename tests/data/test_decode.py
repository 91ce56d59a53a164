"""Every row of the bad-input table that concerns opening an image, with warnings as errors."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageOps, ImageSequence

from tests.data.conftest import png
from tests.pictures import encoded
from vit.data.decode import MAX_PIXELS, ImageError, open_image
from vit.errors import UserError

pytestmark = pytest.mark.filterwarnings("error")

RAMP = np.array([[0, 255, 256, 257, 12_345, 32_768, 65_535]], dtype=">u2")  # h w
GRAY, RGB = 0, 2  # PNG colour types


def photo(height=48, width=64):
    """Smooth colours, which JPEG keeps to within a few levels."""
    y, x = np.mgrid[0:height, 0:width]
    channels = [4 * x % 256, 5 * y % 256, np.full_like(x, 90)]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def pixels(source):
    image = open_image(source)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


def error_line(source):
    with pytest.raises(ImageError) as caught:
        open_image(source)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def white_composite(colour, alpha):
    return [c * alpha / 255 + 255 * (255 - alpha) / 255 for c in colour]


# Right pixel values


SIXTEEN_BITS = {
    "gray PNG": lambda: png(7, 1, [RAMP.tobytes()], depth=16, colour=GRAY),
    "RGB PNG": lambda: png(7, 1, [np.repeat(RAMP, 3).tobytes()], depth=16, colour=RGB),
    "TIFF": lambda: encoded(Image.fromarray(RAMP.astype("<u2")), "TIFF"),
    "big-endian TIFF": lambda: encoded(Image.fromarray(RAMP), "TIFF"),
    "PGM": lambda: b"P5 7 1 65535\n" + RAMP.tobytes(),
}


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_of_sixteen_bits_the_high_byte_is_kept(kind):
    values = pixels(SIXTEEN_BITS[kind]())
    assert np.array_equal(values, np.repeat(RAMP[..., None].astype(int) >> 8, 3, axis=-1))


@pytest.mark.parametrize(("dtype", "kind"), [("f4", "floating-point"), ("i4", "32-bit integer")])
def test_pixels_without_an_agreed_white_are_refused(tmp_path, dtype, kind):
    path = tmp_path / "scan.tif"
    path.write_bytes(encoded(Image.fromarray(np.ones((2, 2), dtype=dtype)), "TIFF"))
    line = error_line(path)
    assert str(path) in line
    assert f"{kind} pixels have no agreed white; save them in 8 or 16 bits" in line


def test_one_bit_png_is_black_and_white():
    values = pixels(png(4, 1, [bytes([0b0110_0000])], depth=1, colour=GRAY))
    assert values[0].tolist() == [[0, 0, 0], [255, 255, 255], [255, 255, 255], [0, 0, 0]]


@pytest.mark.parametrize("transparency", [1, b"\xff\x00\x80"], ids=["index", "alpha per entry"])
def test_palette_with_transparency_is_composited_on_white(transparency):
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0])
    image.putdata([0, 1, 2])
    values = pixels(encoded(image, "PNG", transparency=transparency))
    assert values[0, 0].tolist() == [10, 20, 30]
    assert values[0, 1].tolist() == [255, 255, 255]
    last_alpha = 255 if transparency == 1 else 128
    assert np.abs(values[0, 2] - white_composite((0, 200, 0), last_alpha)).max() <= 1


@pytest.mark.parametrize("alpha", [0, 1, 100, 254, 255])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_alpha_is_composited_on_white(alpha, kind):
    rgba = pixels(encoded(Image.new("RGBA", (2, 1), (200, 0, 40, alpha)), kind))
    assert np.abs(rgba[0, 0] - white_composite((200, 0, 40), alpha)).max() <= 0.5
    gray = pixels(encoded(Image.new("LA", (2, 1), (60, alpha)), kind))
    assert np.abs(gray[0, 0] - white_composite((60,) * 3, alpha)).max() <= 0.5


def test_transparent_colour_of_an_rgb_png_is_white():
    key = struct.pack(">I4sHHH", 6, b"tRNS", 1, 2, 3)
    key += struct.pack(">I", zlib.crc32(key[4:]))
    data = png(2, 1, [bytes([1, 2, 3, 9, 9, 9])], depth=8, colour=RGB, chunks=key)
    assert pixels(data)[0].tolist() == [[255, 255, 255], [9, 9, 9]]


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
@pytest.mark.parametrize(
    ("ink", "colour"),
    [
        ((0, 0, 0, 0), (255, 255, 255)),
        ((0, 255, 255, 0), (255, 0, 0)),
        ((0, 0, 0, 255), (0, 0, 0)),
        ((255, 0, 0, 128), (0, 127, 127)),
    ],
)
def test_cmyk_inks_darken_white_paper(kind, ink, colour):
    options = {"quality": 100} if kind == "JPEG" else {}
    data = encoded(Image.new("CMYK", (16, 16), ink), kind, **options)
    if kind == "JPEG":
        assert b"Adobe" in data[:64]  # so its inks are stored inverted
    assert np.abs(pixels(data) - colour).max() <= 2


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_several_is_used(kind):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "blue", "lime")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert len(ImageSequence.all_frames(Image.open(io.BytesIO(data)))) == 3
    assert np.array_equal(pixels(data), np.broadcast_to((255, 0, 0), (6, 8, 3)))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
def test_exif_rotation_is_applied_once(orientation, kind):
    stored = photo(6, 10)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(stored, kind, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    assert expected.shape == ((6, 10, 3) if orientation < 5 else (10, 6, 3))
    assert np.array_equal(pixels(data), expected)
    assert np.array_equal(pixels(open_image(data)), expected)  # opening again changes nothing


def test_mpo_of_a_phone_gives_its_main_photo():
    data = encoded(photo(), "MPO", save_all=True, append_images=[Image.new("RGB", (64, 48))])
    assert Image.open(io.BytesIO(data)).format == "MPO"
    assert np.abs(pixels(data) - np.asarray(photo())).mean() < 5


# Files that are no images


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "AVIF"])
def test_truncated_file_is_named(tmp_path, kind):
    path = tmp_path / f"half.{kind.lower()}"
    data = encoded(photo(), kind)
    path.write_bytes(data[: len(data) * 7 // 10])
    assert error_line(path) == (
        f"{path}: the image is cut short (truncated file); replace or delete it"
    )


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.jpg", b"", "the file is empty (0 bytes); replace or delete it"),
        ("page.jpg", b"\n<!DOCTYPE html><html>", "a web page (HTML), not an image"),
        ("page.png", b"<html><body>404", "a web page (HTML), not an image"),
        ("lfs.jpg", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("logo.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
        ("scan.jpg", b"%PDF-1.7\n%\xe2\xe3", "a PDF document"),
        ("noise.jpg", b"nothing known " * 9, "not an image of a known format"),
        ("stub.jpg", b"\xff\xd8\xff\xe0\0\x10JFIF", "replace or delete it"),
        ("stub.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "replace or delete it"),
    ],
)
def test_impostor_is_named_with_a_way_out(tmp_path, name, content, reason):
    path = tmp_path / name
    path.write_bytes(content)
    line = error_line(path)
    assert line.startswith(f"{path}: ")
    assert reason in line
    assert ";" in line


def test_missing_file_and_folder_are_named(tmp_path):
    missing = tmp_path / "gone.jpg"
    assert error_line(missing).startswith(f"{missing}: cannot be read (No such file")
    assert error_line(str(tmp_path)).startswith(f"{tmp_path}: cannot be read (Is a directory)")


def test_eps_is_never_run(tmp_path):
    path = tmp_path / "figure.jpg"
    path.write_bytes(encoded(photo(), "EPS"))
    assert "an EPS file is a program" in error_line(path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000"])
def test_damaged_bytes_give_pixels_or_one_line(kind):
    data = encoded(photo(12, 16), kind)
    random = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(data)
        for _ in range(4):
            damaged[random.integers(len(data))] = random.integers(256)
        try:
            assert open_image(bytes(damaged[: random.integers(1, len(data) + 1)])).mode == "RGB"
        except ImageError as error:
            assert "\n" not in str(error)


# Size limits


@pytest.mark.parametrize("name", ["bomb.png", "bomb.jpg"])
def test_400_megapixel_bomb_is_refused_before_decoding(tmp_path, name):
    path = tmp_path / name
    data = png(20_000, 20_000, [b"\0"], depth=8, colour=GRAY)
    if name.endswith("jpg"):
        data = bytearray(encoded(photo(), "JPEG"))
        start = data.index(b"\xff\xc0\0\x11\x08") + 5
        data[start : start + 4] = struct.pack(">HH", 20_000, 20_000)
    path.write_bytes(data)
    assert error_line(path) == (
        f"{path}: 20,000 x 20,000 pixels exceed the limit of {MAX_PIXELS:,}; make it smaller"
    )


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP"])
def test_large_photo_below_the_limit_does_not_warn(monkeypatch, kind):
    data = encoded(photo(), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 48 * 64 - 1)  # Pillow warns above, fails at 2x
    assert pixels(data).shape == (48, 64, 3)


def test_limit_holds_although_pillow_has_none(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    bomb = png(20_000, 20_000, [b"\0"], depth=8, colour=GRAY)
    assert "exceed the limit" in error_line(bomb)
    assert "exceed the limit" in error_line(Image.open(io.BytesIO(bomb)))


# Kinds of source


def test_unicode_spaces_and_odd_bytes_in_paths_work(tmp_path):
    for name in ("Grüße aus 東京 é.png", os.fsdecode(b"caf\xe9.png"), "two\nlines.png"):
        path = tmp_path / name
        path.write_bytes(encoded(Image.new("RGB", (1, 1), (1, 2, 3)), "PNG"))
        assert pixels(path)[0, 0].tolist() == [1, 2, 3]
        assert pixels(str(path))[0, 0].tolist() == [1, 2, 3]
        path.write_bytes(b"")
        assert error_line(path).encode("utf-8")  # can be printed


def test_arrays_are_taken_as_uint8_pixels():
    colour = np.asarray(photo())
    assert np.array_equal(pixels(colour), colour)
    assert np.array_equal(pixels(colour[::2, ::-1]), colour[::2, ::-1])  # strided views
    assert np.array_equal(pixels(colour[..., 0]), np.repeat(colour[..., :1], 3, axis=-1))
    clear = np.zeros((2, 2, 4), dtype=np.uint8)
    assert (pixels(clear) == 255).all()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), dtype=np.float32),
        np.zeros((4, 4), dtype=np.uint16),
        np.zeros((3, 8, 8), dtype=np.uint8),
        np.zeros((0, 4, 3), dtype=np.uint8),
    ],
    ids=["float", "16 bits", "channels first", "empty"],
)
def test_array_of_another_kind_is_refused(array):
    assert error_line(array).endswith("pass uint8 of shape (h, w) or (h, w, 3)")


def test_pil_image_is_converted_and_left_alone():
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    assert (pixels(image) == 255).all()
    assert image.mode == "RGBA"
    upright = photo()
    assert open_image(upright) is upright


def test_an_icc_profile_changes_no_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    data = encoded(Image.fromarray(pixels), "PNG", icc_profile=profile)
    assert Image.open(io.BytesIO(data)).info["icc_profile"] == profile
    np.testing.assert_array_equal(np.asarray(open_image(data)), pixels)
