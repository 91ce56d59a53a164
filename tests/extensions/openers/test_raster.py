"""Images that are not RGB: values against the arrays they were written from, resizing against
Pillow's float mode, statistics against NumPy over all values."""

import io
import struct
import sys
import zlib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.data.conftest import png
from vit.data.decode import ImageError, open_image, open_input, opener
from vit.data.module import ImageData
from vit.data.settings import InputFormat
from vit.data.sources import ImageSet, PathList
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.extensions.openers.raster import (
    Raster,
    channel_statistics,
    open_raster,
    with_statistics,
)
from vit.extensions.recipes.randaugment import RandAugment
from vit.preprocessing import Preprocess, center_crop, picture, resize_to_cover
from vit.tables import GROUP

RANDOM = np.random.default_rng(0)


def stored(values: np.ndarray) -> bytes:
    """A PNG file of `h w c`, uint8 or uint16."""
    height, width, channels = values.shape
    rows = [row.astype(values.dtype.newbyteorder(">")).tobytes() for row in values]
    colour = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    return png(width, height, rows, depth=8 * values.itemsize, colour=colour)


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def some(kind: str, *shape: int) -> np.ndarray:
    if kind.startswith("float"):
        return RANDOM.normal(size=shape).astype(kind)
    info = np.iinfo(kind)
    return RANDOM.integers(info.min, info.max, shape, dtype=kind, endpoint=True)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("kind", "white"), [("uint8", 255), ("uint16", 65535)])
def test_png_keeps_every_bit(channels: int, kind: str, white: int) -> None:
    values = some(kind, 9, 7, channels)
    found = open_raster(stored(values), channels)
    assert found.dtype == torch.float32 and found.shape == (channels, 9, 7)
    restored = np.rint(found.double().numpy() * white).transpose(1, 2, 0)
    assert (restored == values).all()


@pytest.mark.parametrize("kind", ["uint8", "uint16", ">u2", "int16", "float16", "float64", "int32"])
@pytest.mark.parametrize("shape", [(9, 7, 5), (5, 9, 7), (9, 7)])
def test_arrays_of_both_orders_are_their_values(kind: str, shape: tuple[int, ...]) -> None:
    values = some(kind, *shape) if kind != ">u2" else some("uint16", *shape).astype(">u2")
    found = open_raster(npy(values), 5 if len(shape) == 3 else 1)
    planes = values[None] if values.ndim == 2 else values
    planes = planes.transpose(2, 0, 1) if shape == (9, 7, 5) else planes
    scale = {"uint8": 255, "uint16": 65535}.get(values.dtype.name, 1)
    np.testing.assert_allclose(found.numpy(), planes.astype(np.float64) / scale, rtol=1e-6)


@pytest.mark.parametrize("mode", ["L", "I;16", "F", "RGB"])
def test_tiff_of_pillow_keeps_its_values(mode: str) -> None:
    kind = {"I;16": "uint16", "F": "float32"}.get(mode, "uint8")
    values = some(kind, 8, 6, 3) if mode == "RGB" else some(kind, 8, 6)
    stream = io.BytesIO()
    Image.fromarray(values).save(stream, "TIFF")
    found = open_raster(stream.getvalue(), 3 if mode == "RGB" else 1).numpy()
    scale = {"uint8": 255, "uint16": 65535}.get(kind, 1)
    planes = values.transpose(2, 0, 1) if mode == "RGB" else values[None]
    np.testing.assert_allclose(found * scale, planes, rtol=1e-6)


@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("channels", [3, 5, 16])
def test_tiff_of_many_channels_keeps_its_values(kind: str, planar: str, channels: int) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = some(kind, 20, 18, channels)
    stream = io.BytesIO()
    ordered = values if planar == "contig" else values.transpose(2, 0, 1)
    tifffile.imwrite(stream, ordered, planarconfig=planar, photometric="minisblack")
    found = open_raster(stream.getvalue(), channels).numpy()
    scale = {"uint8": 255, "uint16": 65535}.get(kind, 1)
    np.testing.assert_allclose(found * scale, values.transpose(2, 0, 1), rtol=1e-6)


def test_signed_bytes_of_a_tiff_keep_their_sign() -> None:
    tifffile = pytest.importorskip("tifffile")
    stream, values = io.BytesIO(), np.array([[-100, -1], [0, 100]], np.int8)
    tifffile.imwrite(stream, values)
    assert open_raster(stream.getvalue(), 1).tolist() == [values.tolist()]


def test_32_bits_of_a_tiff_have_no_sign_unless_it_says_so() -> None:
    tifffile = pytest.importorskip("tifffile")
    for kind, value in (("uint32", 3_000_000_000), ("int32", -2_000_000_000)):
        stream = io.BytesIO()
        tifffile.imwrite(stream, np.full((2, 2), value, kind))
        assert open_raster(stream.getvalue(), 1).unique().tolist() == [value]


@pytest.mark.parametrize(
    ("options", "channels"),
    [
        ({"photometric": "rgb", "extratags": [(274, "H", 1, 6, True)]}, 3),
        ({"photometric": "miniswhite", "planarconfig": "separate"}, 5),
    ],
)
def test_what_tifffile_would_not_turn_or_invert_is_refused(
    options: dict[str, Any], channels: int
) -> None:
    tifffile = pytest.importorskip("tifffile")
    stream, shape = io.BytesIO(), (18, 20, channels) if channels == 3 else (channels, 18, 20)
    tifffile.imwrite(stream, some("uint16", *shape), **options)
    with pytest.raises(ImageError, match="save it upright"):
        open_raster(stream.getvalue(), channels)


@pytest.mark.parametrize("kind", ["uint16", "float32"])
def test_white_as_0_is_refused_where_pillow_does_not_invert_it(kind: str) -> None:
    tifffile = pytest.importorskip("tifffile")
    stream = io.BytesIO()
    tifffile.imwrite(stream, some(kind, 18, 20), photometric="miniswhite")
    with pytest.raises(ImageError, match="save it with black as 0"):
        open_raster(stream.getvalue(), 1)
    stream, values = io.BytesIO(), some("uint8", 18, 20)
    tifffile.imwrite(stream, 255 - values, photometric="miniswhite")
    assert (open_raster(stream.getvalue(), 1)[0] * 255).round().tolist() == values.tolist()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_16_bits_of_colour_are_turned_as_8_are(orientation: int) -> None:
    values = some("uint16", 9, 7, 3)
    exif = Image.Exif()
    exif[274] = orientation
    content = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = b"eXIf" + content
    chunk = struct.pack(">I", len(content)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    head = 8 + 25  # the signature and IHDR
    plain = stored(values)
    turned = open_raster(plain[:head] + chunk + plain[head:], 3)
    stream = io.BytesIO()
    Image.fromarray((values >> 8).astype(np.uint8)).save(stream, "PNG", exif=exif)
    expected = open_raster(stream.getvalue(), 3)
    assert turned.shape == expected.shape
    assert (turned - expected).abs().max() < 1 / 255


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("uint16", {"photometric": "rgb", "planarconfig": "separate"}),
        ("uint16", {"photometric": "miniswhite"}),
        ("int8", {}),
    ],
)
def test_a_tiff_that_pillow_misreads_is_refused(kind: str, options: dict[str, Any]) -> None:
    tifffile = pytest.importorskip("tifffile")
    stream = io.BytesIO()
    tifffile.imwrite(stream, some(kind, *[3] * ("planarconfig" in options), 18, 20), **options)
    with pytest.raises(ImageError, match="a rare kind of TIFF"):
        open_image(stream.getvalue())


def test_a_gray_tiff_of_one_plane_is_read_whatever_it_says_of_planes() -> None:
    tifffile = pytest.importorskip("tifffile")
    stream, values = io.BytesIO(), some("uint16", 18, 20)
    planes = (284, "H", 1, 2, True)
    tifffile.imwrite(stream, values, photometric="minisblack", extratags=[planes])
    red = np.asarray(open_image(stream.getvalue()))[..., 0]
    np.testing.assert_array_equal(red, values >> 8)


def test_twelve_bits_of_a_tiff_are_not_taken_for_sixteen() -> None:
    tags = {256: 2, 257: 2, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: 6}
    entries = [struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items()]
    strips = struct.pack("<2sHI", b"II", 42, 16) + bytes(8)
    file = strips + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4)
    with pytest.raises(ImageError, match=r"a rare kind of TIFF \(12 bits\)"):
        open_image(file)


def test_a_file_that_tifffile_is_needed_for_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tifffile = pytest.importorskip("tifffile")
    stream = io.BytesIO()
    tifffile.imwrite(stream, some("uint16", 20, 18, 5), photometric="minisblack")
    monkeypatch.setitem(__import__("sys").modules, "tifffile", None)
    with pytest.raises(UserError, match=r"vitkit\[tiff\]"):
        open_raster(stream.getvalue(), 5)


NAN = np.ones((4, 4, 5), np.float32)
NAN[1, 2, 3] = np.nan


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (npy(NAN), "has values that are NaN or infinite"),
        (npy(np.full((4, 4, 5), 1e300)), "has values that are NaN or infinite"),
        (npy(np.ones((4, 4, 3))), r"its shape is \(4, 4, 3\), .* choose --data.channels 3"),
        (npy(np.ones((4, 4))), r"its shape is \(4, 4\), .* choose --data.channels 1"),
        (npy(np.ones(4)), r"an array of shape \(4,\) is no image"),
        (npy(np.array(["a"])), "an array of <U1"),
        (npy(np.ones((4, 4, 5)))[:200], "cannot be decoded"),
        (b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
         "cannot be decoded"),
        (stored(some("uint8", 30, 30, 3))[:900], "cut short"),
        (b"", "the file is empty"),
        (npy(np.ones((0, 4, 5))), "no pixels"),
    ],
)  # fmt: skip
def test_what_is_no_such_image_is_refused_in_one_line(
    data: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(ImageError, match=message) as caught:
        open_raster(tmp_path / "a.npy", 5)
    assert "a.npy" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("resize", ["crop", "squash"])
@pytest.mark.parametrize("shape", [(40, 61), (90, 31), (20, 20), (3, 500)])
def test_evaluation_is_that_of_pillows_float_images(
    shape: tuple[int, int], resize: str, interpolation: str
) -> None:
    values = some("float32", *shape, 5)
    half = (0.0,) * 5
    preprocess = Preprocess(
        image_size=(24, 30),
        resize=resize,  # pyright: ignore[reportArgumentType]
        interpolation=interpolation,  # pyright: ignore[reportArgumentType]
        mean=half,
        std=(1.0,) * 5,
        channels=5,
    )
    found = preprocess(open_raster(values, 5))
    for plane, own in zip(found.numpy(), values.transpose(2, 0, 1), strict=True):
        image = Image.fromarray(np.ascontiguousarray(own))
        size = tuple(round(side / preprocess.crop_fraction) for side in (24, 30))
        if resize == "squash":
            filter_ = Image.Resampling[interpolation.upper()]
            image = image.resize((size[1], size[0]), filter_)
        else:
            image = resize_to_cover(image, (size[0], size[1]), preprocess.interpolation)
        expected = np.asarray(center_crop(image, (24, 30)))
        np.testing.assert_allclose(plane, expected, atol=1e-4)


def test_gray_of_8_bits_is_prepared_as_its_rgb_picture_is() -> None:
    values = some("uint8", 50, 40)
    gray = Preprocess(image_size=(24, 24), mean=(0.4,), std=(0.2,), channels=1)
    rgb = Preprocess(image_size=(24, 24), mean=(0.4,) * 3, std=(0.2,) * 3)
    ours = gray.normalize(gray(open_raster(values, 1))[None])
    theirs = rgb.normalize(rgb(open_image(values))[None])
    # Pillow rounds to whole values after each of two passes.
    torch.testing.assert_close(ours, theirs[:, :1], atol=1.1 / 255 / 0.2, rtol=0)


def test_a_description_is_read_back_and_rgb_has_no_field_more() -> None:
    five = InputFormat(mean=(1.0, 2.0, 3.0, 4.0, 5.0), std=(1.0,) * 5).preprocess((8, 8), 5)
    assert Preprocess.from_dict(five.to_dict()) == five
    assert "channels" not in InputFormat().preprocess((8, 8)).to_dict()
    for channels in (0, 17, 2):
        with pytest.raises(UserError, match=r"channels=|must be 2 numbers"):
            Preprocess(image_size=(8, 8), channels=channels)


@pytest.mark.parametrize("crop", ["inception", "pad", "simple", "resize_random", "none"])
def test_training_crops_have_the_size_and_are_a_function_of_the_seed(crop: str) -> None:
    more = {"resize_size": 20} if crop == "resize_random" else {}
    augment = TrainTransform(crop=crop, erasing=0.5, **more)  # pyright: ignore
    raster = open_raster(some("uint16", 33, 25, 5), 5)

    def drawn(seed: int) -> Tensor:
        return augment(raster, seed, (16, 12), mean=(0.5,) * 5, std=(0.2,) * 5)

    for seed in range(8):
        assert drawn(seed).shape == (5, 16, 12) and torch.equal(drawn(seed), drawn(seed))
    assert not torch.equal(drawn(0), drawn(1))


@pytest.mark.parametrize("name", ["policy", "three_augment", "color_jitter"])
def test_changes_of_colours_are_refused(name: str) -> None:
    value = {"policy": RandAugment(), "three_augment": True, "color_jitter": 0.3}[name]
    augment = TrainTransform(**{name: value})
    with pytest.raises(UserError, match=f"data.augment.{name} changes RGB"):
        ImageData(root="x", channels=5, augment=augment)


def test_a_picture_to_look_at_is_rgb_from_black_to_white() -> None:
    raster = open_raster(some("int16", 9, 7, 5), 5)
    shown = np.asarray(picture(raster))
    assert shown.shape == (9, 7, 3) and shown.min() == 0 and shown.max() == 255
    gray = np.asarray(picture(raster[:1]))
    assert (gray[..., 0] == gray[..., 2]).all()


def test_an_installed_opener_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    openers: list[str] = []

    class Few(Raster):
        def __init__(self) -> None:
            openers.append("few")

        def open(self, source: Any, channels: int) -> Any:
            return f"{source} of {channels}"

    monkeypatch.setitem(sys.modules, "vit_few", SimpleNamespace(Few=Few))
    row = EntryPoint("openers.few", "vit_few:Few", GROUP)
    entries = [("few", row)]
    monkeypatch.setattr("vit.tables.installed", lambda table: entries * (table == "openers"))
    opener.cache_clear()
    assert [open_input(name, 2) for name in "ab"] == ["a of 2", "b of 2"] and openers == ["few"]
    opener.cache_clear()


def saved_arrays(folder: Path, arrays: list[np.ndarray]) -> ImageSet:
    for number, values in enumerate(arrays):
        np.save(folder / f"{number}.npy", values)
    paths = PathList((f"{number}.npy" for number in range(len(arrays))), str(folder))
    return ImageSet(paths, np.zeros(len(arrays), np.int64), paths)


def test_statistics_are_numpys_over_all_values(tmp_path: Path) -> None:
    scales, generator = [1, 5, 0, 30, 1e-2], np.random.default_rng(0)
    arrays = [
        generator.normal(1e4, scales, (h, w, 5)).astype(np.float32)
        for h, w in ((9, 7), (30, 4), (1, 1))
    ]
    together = np.concatenate([a.reshape(-1, 5) for a in arrays]).astype(np.float64)
    mean, std = channel_statistics(saved_arrays(tmp_path, arrays), 5, "")
    np.testing.assert_allclose(mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, together.std(0), rtol=1e-9, atol=1e-12)


def test_a_constant_channel_is_named_and_given_statistics_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = saved_arrays(tmp_path, [np.stack([np.eye(6), np.ones((6, 6))], 2)] * 2)
    computed = with_statistics(InputFormat(), images, 2, "")
    assert computed.mean == (1 / 6, 1.0) and computed.std is not None and computed.std[1] == 1.0
    assert "std 0.3727, 0 (of 2 train images)" in capsys.readouterr().err
    given = InputFormat(mean=(0.0, 0.0), std=(1.0, 1.0))
    assert with_statistics(given, images, 2, "") is given
    for wrong in (InputFormat(mean=(0.5,) * 3, std=(0.5,) * 3), InputFormat(mean=(0.5, 0.5))):
        with pytest.raises(UserError, match="mean"):
            with_statistics(wrong, images, 2, "").preprocess((6, 6), 2)
