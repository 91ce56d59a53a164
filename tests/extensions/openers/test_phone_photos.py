"""Pictures as phones, cameras and scanners give them: HEIC, AVIF, JPEG XL, less than 16 bits."""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.command import TINY, Vit, vit
from tests.pictures import encoded, scene
from vit.data.decode import ImageError, open_image, open_input
from vit.data.module import ImageData
from vit.data.photo import Photo
from vit.extensions.openers import phone_photos

__all__ = ["vit"]

KINDS = {"HEIC": ("HEIF", "pillow_heif"), "JPEG XL": ("JXL", "pillow_jxl"), "AVIF": ("AVIF", "PIL")}
TURNED = 6
"""By a quarter: the first row is the right column of the upright picture."""


def halves() -> Image.Image:
    """Red above, black below."""
    pixels = np.zeros((32, 48, 3), np.uint8)
    pixels[:16] = [200, 0, 0]
    return Image.fromarray(pixels)


def written(kind: str, picture: Image.Image | None = None, **options: Any) -> bytes:
    saved, plugin = KINDS[kind]
    library: Any = pytest.importorskip(plugin, reason="pip install 'vitkit[photos]'")
    if kind == "HEIC":
        library.register_heif_opener()
    if options.pop("orientation", None):
        exif = Image.Exif()
        exif[0x0112] = TURNED
        options["exif"] = exif.tobytes()
    return encoded(picture or halves(), saved, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_photo_is_read_by_what_reads_it_and_by_its_bytes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "named.jpg"
    path.write_bytes(written(kind))
    image = open_image(path)
    assert image.mode == "RGB" and image.size == (48, 32)
    close = np.abs(np.asarray(image).astype(int) - np.asarray(halves()))
    assert close[:14].max() < 12 and close[18:].max() < 12
    assert Photo(path).image().tobytes() == image.tobytes()
    raster = open_input(path, 3)
    assert raster.shape == (3, 32, 48) and torch.equal(
        (raster * 255).round().byte(), torch.from_numpy(np.array(image)).permute(2, 0, 1)
    )


@pytest.mark.parametrize("kind", ["HEIC", "AVIF"])
def test_a_photo_that_its_own_fields_turn_is_upright_once(kind: str) -> None:
    upright = np.asarray(open_image(written(kind, orientation=True)))
    assert upright.shape == (48, 32, 3)
    assert upright[:, 20:, 0].min() > 180 and upright[:, :12].max() < 20


def test_jpeg_xl_is_turned_by_its_own_field_or_that_of_the_jpeg_inside(tmp_path: Path) -> None:
    assert open_image(written("JPEG XL", orientation=True)).size == (48, 32)  # EXIF is no order
    exif = Image.Exif()
    exif[0x0112] = TURNED
    halves().save(tmp_path / "a.jpg", exif=exif.tobytes())
    with Image.open(tmp_path / "a.jpg") as photo:
        photo.save(tmp_path / "a.jxl", lossless_jpeg=True)
    same = (open_image(tmp_path / name) for name in ("a.jxl", "a.jpg"))
    assert len({image.tobytes() for image in same}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_transparency_is_white_and_damage_is_one_line(kind: str) -> None:
    clear = halves()
    clear.putalpha(0)
    assert np.asarray(open_image(written(kind, clear))).min() > 250
    content = written(kind, scene(0))
    for size in (40, len(content) // 2, len(content) - 9):
        with pytest.raises(ImageError, match=r"cut short|damaged|cannot be") as error:
            open_image(content[:size])
        assert "\n" not in str(error.value) and "pip install" not in str(error.value)


HEADS = {
    "HEIC": b"\0\0\0\x1cftypheic\0\0\0\0mif1heic",
    "HEIC ": b"\0\0\0\x1cftypmif1\0\0\0\0mif1miaf",
    "AVIF": b"\0\0\0\x20ftypavif\0\0\0\0avifmif1",
    "JPEG XL": b"\0\0\0\x0cJXL \r\n\x87\n",
    "JPEG XL ": b"\xff\x0a\x09\x07",
}


@pytest.mark.parametrize("kind", HEADS)
def test_without_the_plugin_the_file_and_the_extra_are_named(
    kind: str,
    vit: Vit,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pillow_heif", "pillow_jxl"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("vit.extensions.openers.phone_photos.features.check", lambda _: False)
    phone_photos._is_read.cache_clear()
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "photos" / name / f"{number}.heic").write_bytes(HEADS[kind] + bytes(64))
    done = vit("fit", "-c", "cifar10", "--data", "photos", *TINY, "--steps=1")
    assert done.status == 2 and ".heic: a " in done.err, done.err
    assert f"a {kind.strip()} image needs pip install 'vitkit[photos]'" in done.err
    with pytest.raises(ImageError, match="needs pip install"):
        open_input(tmp_path / "photos" / "a" / "0.heic", 3)
    phone_photos._is_read.cache_clear()


@pytest.mark.parametrize(
    ("suffix", "most", "noted"),
    [("png", 4095, True), ("tif", 4095, True), ("png", 65535, False), ("png", 255, False)],
)
def test_values_that_use_less_than_16_bits_are_noted_once(
    suffix: str, most: int, noted: bool, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    random, kind = np.random.default_rng(0), np.uint8 if most == 255 else np.uint16
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(20):
            values = random.integers(0, most, (16, 16), endpoint=True).astype(kind)
            Image.fromarray(values).save(tmp_path / name / f"{number}.{suffix}")
    for channels, times in ((None, int(noted)), (1, 0)):
        data = ImageData(root=str(tmp_path), channels=channels)
        assert len(data.look().splits.train)
        said = capsys.readouterr().err
        assert said.count("--data.channels 1") == times
        assert ("end at 4,09" in said) is bool(times)


def test_xmp_that_is_no_utf_8_is_read_and_turns_as_other_xmp() -> None:
    plain = encoded(halves())
    for text in ("a", "é"):
        xmp = f'<x:xmpmeta tiff:Orientation="{TURNED}" by="{text}">'.encode("latin1")
        part = b"http://ns.adobe.com/xap/1.0/\0" + xmp
        size = (len(part) + 2).to_bytes(2, "big")
        assert open_image(plain[:2] + b"\xff\xe1" + size + part + plain[2:]).size == (32, 48)
    assert Image.open(io.BytesIO(plain)).size == (48, 32)
