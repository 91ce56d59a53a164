import gc

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data import photo
from vit.data.borrow import borrowed
from vit.data.photo import Photo

PIXELS = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 5), (200, 300), (31, 257)])
def test_borrowed_pixels_are_the_images(height, width):
    expected = PIXELS[:height, :width]
    pixels = borrowed(Image.fromarray(expected))
    assert pixels is not None and pixels.shape == (height, width, 4)
    assert np.array_equal(pixels[..., :3], expected)


def test_borrowed_memory_outlives_the_image():
    image = Image.fromarray(PIXELS)
    pixels = borrowed(image)
    assert pixels is not None
    del image
    gc.collect()
    _ = [Image.new("RGB", (300, 200), "red") for _ in range(20)]  # would take freed memory
    assert np.array_equal(pixels[..., :3], PIXELS)


def test_what_is_not_lent_is_copied(monkeypatch):
    image = Image.fromarray(PIXELS)
    assert borrowed(image.convert("L")) is None
    assert borrowed(Image.new("RGB", (4000, 3000))) is None  # 48 MB lie in several blocks
    box, size = (10, 20, 150, 160), (64, 48)
    lent = Photo(image).crop(box, size, "bilinear")
    monkeypatch.setattr(photo, "borrowed", lambda image: None)
    copied = Photo(image).crop(box, size, "bilinear")
    assert torch.equal(lent, copied) and lent.is_contiguous()


def test_an_older_pillow_lends_nothing(monkeypatch):
    monkeypatch.delattr(Image.Image, "__arrow_c_array__")
    assert borrowed(Image.fromarray(PIXELS)) is None
