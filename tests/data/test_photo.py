"""Crops of partly decoded JPEGs, against Pillow's crop of the whole image."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.pictures import encoded
from vit.data.decode import ImageError, open_image
from vit.data.photo import Photo
from vit.data.transforms import TrainTransform, inception_box
from vit.preprocessing import Interpolation, resize_to_cover, to_tensor


def scene(height, width):
    """A photo whose contrast leaves room for the overshoot of a filter."""
    image = Image.fromarray(load_sample_image("china.jpg")).resize((width, height))
    return image.point(lambda level: 0.75 * level + 30)


@pytest.fixture(scope="module")
def small():
    return encoded(scene(240, 320), quality=90)


@pytest.fixture(scope="module")
def large():
    return encoded(scene(600, 800), quality=90)


def psnr(ours, theirs):
    error = (ours.double() - theirs.double()).square().mean().item()
    return 10 * np.log10(255**2 / max(error, 1e-3))


def pillows(data, box, size, interpolation: Interpolation = "bilinear"):
    """Crop, then resize: torchvision's RandomResizedCrop."""
    top, left, height, width = box
    part = open_image(data).crop((left, top, left + width, top + height))
    return to_tensor(part.resize(size[::-1], Image.Resampling[interpolation.upper()]))


def boxes(height, width, count, area=(0.05, 1.0)):
    torch.manual_seed(0)
    return [inception_box(height, width, area) for _ in range(count)]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_fully_decoded_crop_is_pillows_within_one(small, interpolation):
    for box in boxes(240, 320, 40):
        ours = Photo(small).crop(box, (128, 128), interpolation)
        theirs = pillows(small, box, (128, 128), interpolation)
        assert ours.dtype == torch.uint8 and ours.is_contiguous()
        difference = (ours.int() - theirs.int()).abs().max()
        assert difference <= (2 if interpolation == "bicubic" else 1)
        assert psnr(ours, theirs) > 50


@pytest.mark.parametrize("size", [(75, 75), (37, 37), (19, 28)])
def test_a_scaled_crop_is_close_to_pillows(large, size):
    drawn, decoded = [], []
    for box in boxes(600, 800, 25, area=(0.3, 1.0)):
        ours = Photo(large).crop(box, size, "bilinear")
        drawn.append(psnr(ours, pillows(large, box, size)))
        scale = 8
        while min(box[2] / size[0], box[3] / size[1]) < scale:
            scale //= 2
        edges = [round(v / scale) for v in (box[0], box[1], box[0] + box[2], box[1] + box[3])]
        top, left = scale * edges[0], scale * edges[1]
        bottom, right = min(scale * edges[2], 600), min(scale * edges[3], 800)
        moved = (top, left, bottom - top, right - left)
        decoded.append(psnr(ours, pillows(large, moved, size)))
    assert np.median(decoded) > 42  # scaling in the DCT is another filter than Pillow's
    assert np.median(drawn) > 35  # and the box is moved by up to half a pixel of the result


def test_rows_below_the_crop_are_not_decoded(small):
    damaged = bytearray(small)
    for position in range(int(len(small) * 0.8), len(small) - 2, 7):
        near = small[position - 1 : position + 2]
        if 0xFF not in near and near[1] != 0xFF ^ 0x15:  # markers would end the decoding
            damaged[position] ^= 0x15
    top = (0, 30, 100, 200)
    expected = Photo(small).crop(top, (64, 64), "bilinear")
    assert torch.equal(Photo(bytes(damaged)).crop(top, (64, 64), "bilinear"), expected)
    bottom = (140, 30, 100, 200)
    assert not torch.equal(
        Photo(bytes(damaged)).crop(bottom, (64, 64), "bilinear"),
        Photo(small).crop(bottom, (64, 64), "bilinear"),
    )


def test_a_black_last_row_is_not_mistaken_for_a_failure():
    image = scene(240, 320)
    image.paste((0, 0, 0), (0, 100, 320, 240))
    data = encoded(image, quality=95)
    for bottom in (90, 120, 180, 239):
        box = (0, 0, bottom, 320)
        ours = Photo(data).crop(box, (128, 170), "bilinear")
        assert (ours.int() - pillows(data, box, (128, 170)).int()).abs().max() <= 1


def with_orientation(tag):
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif


UNUSUAL = {
    "gray": lambda image: encoded(image.convert("L")),
    "progressive": lambda image: encoded(image, progressive=True),
    "no subsampling": lambda image: encoded(image, subsampling=0),
    "restart markers": lambda image: encoded(image, restart_marker_rows=1),
    "upright by EXIF": lambda image: encoded(image, exif=with_orientation(1)),
    "turned by EXIF": lambda image: encoded(image, exif=with_orientation(6)),
    "turned by XMP": lambda image: encoded(
        image, xmp=b'<x xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="3"/>'
    ),
    "unknown EXIF": lambda image: encoded(image, exif=with_orientation(0)),
    "damaged EXIF": lambda image: encoded(image, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"),
    "CMYK": lambda image: encoded(image.convert("CMYK")),
    "trailing bytes": lambda image: encoded(image) + b"\0" * 100,
    "PNG": lambda image: encoded(image, "PNG"),
    "palette": lambda image: encoded(image.quantize(64), "PNG"),
    "16 bits": lambda image: encoded(image.convert("L").convert("I;16"), "PNG"),
    "WebP": lambda image: encoded(image, "WEBP"),
}


@pytest.mark.parametrize("kind", list(UNUSUAL))
def test_every_kind_of_file_is_shown_as_open_image_shows_it(kind):
    data = UNUSUAL[kind](scene(200, 260))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        photo = Photo(data)
        whole = open_image(data)
        assert (photo.height, photo.width) == (whole.height, whole.width)
        for box in [(0, 0, whole.height, whole.width), (10, 20, 100, 90)]:
            ours = Photo(data).crop(box, (140, 130), "bilinear")
            assert (ours.int() - pillows(whole, box, (140, 130)).int()).abs().max() <= 1
        assert to_tensor(photo.image()).equal(to_tensor(whole))


def test_images_in_memory_are_taken_too():
    image = scene(60, 80)
    for source in (image, np.asarray(image), np.asarray(image.convert("L"))):
        ours = Photo(source).crop((5, 6, 40, 50), (32, 32), "bilinear")
        assert (ours.int() - pillows(source, (5, 6, 40, 50), (32, 32)).int()).abs().max() <= 1


@pytest.mark.parametrize(
    "break_it",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-2],
        lambda data: b"",
        lambda data: b"<html>",
        lambda data: data[:20] + b"\xff\xd9",
        lambda data: data[: data.index(b"\xff\xc4")] + b"\xff\xd9",
        # Markers that do not belong there: the decoder notices at the end of the file.
        lambda data: data[:4000] + b"\xff\xc0\x00\x11" * 40 + data[4000:],
        lambda data: data[:-4000] + b"\xff\xc0\x00\x11" * 40 + data[-4000:],
        lambda data: data[:4000] + data[-2:],
    ],
)
def test_broken_files_end_as_with_open_image(small, break_it, tmp_path):
    path = tmp_path / "broken.jpg"
    path.write_bytes(break_it(small))
    try:
        expected = open_image(path)
    except ImageError as error:
        with pytest.raises(ImageError) as caught:
            Photo(path).crop((0, 0, 100, 100), (64, 64), "bilinear")
        assert str(caught.value) == str(error)
        assert str(path) in str(error)
    else:
        ours = Photo(path).crop((0, 0, 100, 100), (64, 64), "bilinear")
        theirs = pillows(expected, (0, 0, 100, 100), (64, 64))
        assert (ours.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(100, 100), (60, 150)])
def test_a_covered_size_of_a_large_photo_is_that_of_the_whole(size, mode):
    large = encoded(scene(600, 800).convert(mode), quality=90)
    ours = Photo(large).cover(size, "bilinear")
    theirs = resize_to_cover(open_image(large), size, "bilinear")
    assert ours.size == theirs.size
    assert psnr(to_tensor(ours), to_tensor(theirs)) > 40
    same = Photo(large).cover((400, 400), "bilinear")  # less than twice as large
    whole = resize_to_cover(open_image(large), (400, 400), "bilinear")
    assert torch.equal(to_tensor(same), to_tensor(whole))


@pytest.mark.parametrize("crop", ["inception", "pad", "simple", "none"])
def test_training_crops_of_a_file_and_of_its_image_show_the_same(small, crop):
    transform = TrainTransform(crop=crop, erasing=0.5)
    for seed in range(20):
        ours = transform(Photo(small), seed, (64, 64))
        theirs = transform(open_image(small), seed, (64, 64))
        assert psnr(ours, theirs) > 30  # the same window, mirroring and erased box
