"""Evaluation preprocessing equals torchvision's to the bit and needs only torch and Pillow."""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from tests.pictures import noise
from vit.data.settings import InputFormat
from vit.errors import UserError
from vit.preprocessing import MAX_ASPECT, Preprocess, center_crop, resize_to_cover, to_tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}


def compose(steps) -> Any:  # torchvision annotates its transforms as tensor to tensor
    return transforms.Compose(steps)


def torchvision_preprocess(side, crop, interpolation):
    return compose(
        [
            transforms.Resize(side, interpolation=FILTERS[interpolation]),
            transforms.CenterCrop(crop),
            transforms.PILToTensor(),
        ]
    )


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize(
    ("height", "width"),
    [(64, 64), (375, 500), (500, 375), (101, 97), (7, 11), (1, 1), (3, 200)],
)
@pytest.mark.parametrize(("side", "crop"), [(64, 56), (64, 64), (37, 33)])
def test_crop_equals_torchvision_to_the_bit(height, width, interpolation, side, crop):
    image = noise(height, width)
    preprocess = Preprocess(
        image_size=(crop, crop), crop_fraction=crop / side, interpolation=interpolation
    )
    expected = torchvision_preprocess(side, crop, interpolation)(image)
    assert torch.equal(preprocess(image), expected)


def test_centre_crop_pads_a_small_image_with_black_as_torchvision():
    numbers = random.Random(0)
    for _ in range(100):
        image = noise(numbers.randint(1, 30), numbers.randint(1, 30))
        size = (numbers.randint(1, 30), numbers.randint(1, 30))
        expected = np.asarray(transforms.CenterCrop(size)(image))
        assert np.array_equal(np.asarray(center_crop(image, size)), expected), (image.size, size)


@pytest.mark.parametrize("interpolation", FILTERS)
@pytest.mark.parametrize("height", [32, 28])
def test_squash_equals_torchvision_to_the_bit(interpolation, height):
    # With a fraction as big_vision's few-shot evaluation: the squashed image is cropped.
    preprocess = Preprocess(
        image_size=(height, height),
        resize="squash",
        interpolation=interpolation,
        crop_fraction=height / 32,
    )
    theirs = compose(
        [
            transforms.Resize((32, 32), FILTERS[interpolation]),
            transforms.CenterCrop(height),
            transforms.PILToTensor(),
        ]
    )
    for image in (noise(375, 500), noise(20, 30)):
        assert torch.equal(preprocess(image), theirs(image))


@pytest.mark.parametrize("size", [(32, 96), (96, 32), (48, 50)])
def test_cover_leaves_no_border_on_sizes_that_are_not_square(size):
    numbers = random.Random(0)
    for _ in range(50):
        height, width = numbers.randint(1, 300), numbers.randint(1, 300)
        image = Image.new("RGB", (width, height), "white")
        covering = resize_to_cover(image, size, "bilinear")
        assert min(covering.height - size[0], covering.width - size[1]) == 0
        shown = Preprocess(image_size=size, crop_fraction=1.0)(image)
        assert shown.shape == (3, *size) and (shown == 255).all()


@pytest.mark.parametrize(("height", "width"), [(1, 20_000), (20_000, 1)])
def test_a_strip_does_not_fill_the_memory(height, width):
    covering = resize_to_cover(Image.new("RGB", (width, height)), (256, 256), "bilinear")
    assert sorted(covering.size) == [256, 256 * MAX_ASPECT]
    preprocess = Preprocess(image_size=(224, 224), crop_fraction=1.0)
    assert preprocess(Image.new("RGB", (width, height))).shape == (3, 224, 224)


def test_to_tensor_equals_torchvision_and_owns_its_memory():
    image = noise(5, 7)
    pixels = to_tensor(image)
    assert torch.equal(pixels, transforms.PILToTensor()(image))
    assert pixels.is_contiguous()
    pixels.zero_()
    assert np.asarray(image).any()


def test_image_that_was_not_opened_as_rgb_is_refused():
    with pytest.raises(ValueError, match="mode L: open it with"):
        to_tensor(Image.new("L", (4, 4)))


@pytest.mark.parametrize("count", [0, 1, 60])
def test_normalize_equals_torchvision_to_the_bit(count):
    # 60 images are above the size that is mapped in huge pages.
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 224, 224), dtype=torch.uint8, generator=generator)
    preprocess = Preprocess(image_size=(224, 224), mean=MEAN, std=STD, crop_fraction=1.0)
    first = preprocess.normalize(images)
    torch.set_default_dtype(torch.bfloat16)  # as the Trainer does in a pass with bf16-true
    try:
        second = preprocess.normalize(images)
    finally:
        torch.set_default_dtype(torch.float32)
    assert first.dtype == torch.float32 and torch.equal(first, second)
    normalize = transforms.Normalize(MEAN, STD)
    expected = [normalize(image.float().div(255)) for image in images]
    assert first.shape == images.shape and first.is_contiguous()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, expected, strict=True))
    second.zero_()  # memory of its own
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first, expected, strict=True))


def test_default_normalisation_is_the_papers():
    ramp = torch.arange(256, dtype=torch.uint8).expand(1, 3, 1, 256)
    normalized = Preprocess(image_size=(1, 256), crop_fraction=1.0).normalize(ramp)
    assert torch.allclose(normalized, (ramp.double() / 127.5 - 1).float(), atol=1e-6)


def test_normalize_refuses_what_was_normalised_already():
    preprocess = Preprocess(image_size=(4, 4), crop_fraction=1.0)
    with pytest.raises(ValueError, match=r"not torch.float32 of shape \(1, 3, 4, 4\)"):
        preprocess.normalize(torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match=r"of shape \(1, 1, 4, 4\)"):
        preprocess.normalize(torch.zeros(1, 1, 4, 4, dtype=torch.uint8))


def test_pad_shows_the_whole_image_between_borders_of_the_mean():
    preprocess = Preprocess(image_size=(40, 30), resize="pad", crop_fraction=1.0, mean=(0.2, 0, 1))
    image = noise(20, 60)
    pixels = preprocess(image)
    inside = image.resize((30, 10), Image.Resampling.BILINEAR)
    assert torch.equal(pixels[:, 15:25], to_tensor(inside))
    assert (pixels[:, :15].flatten(1).T == torch.tensor([51, 0, 255])).all()
    values = torch.rand(2, 20, 60)
    raster = Preprocess.from_dict({**preprocess.to_dict(), "mean": [3.0, -1.0], "std": [1.0, 1.0],
                                   "channels": 2})(values)  # fmt: skip
    small = torch.nn.functional.interpolate(values[None], (10, 30), mode="bilinear", antialias=True)
    assert torch.equal(raster[:, 15:25], small[0])
    assert (raster[:, 25:].flatten(1).T == torch.tensor([3.0, -1.0])).all()
    assert InputFormat(resize="pad").preprocess((8, 8)).crop_fraction == 1


def test_dict_survives_json():
    sizes = {"image_size": (224, 160), "resize": "squash", "crop_fraction": 0.9}
    colours = {"interpolation": "bicubic", "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 1.0)}
    preprocess = Preprocess(**sizes, **colours)
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess
    assert Preprocess.from_dict({"image_size": [8, 8]}) == Preprocess(image_size=(8, 8))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image_size": [8, 8], "zoom": 1}, "'zoom'; it is an object with the fields image_size"),
        ({}, "argument: 'image_size'; it is an object with the fields image_size"),
        ({"image_size": 8}, r"image_size=8 must be 2 numbers"),
        ({"image_size": [8, 0]}, "image_size"),
        ({"image_size": [8, 8], "resize": "crop_"}, "resize='crop_' is unknown; choose crop | "),
        ({"image_size": [8, 8], "interpolation": "sinc"}, "choose bilinear | bicubic$"),
        ({"image_size": [8, 8], "crop_fraction": 0}, r"crop_fraction=0 must be in \(0, 1\]"),
        ({"image_size": [8, 8], "crop_fraction": "0.9"}, "crop_fraction"),
        ({"image_size": [8, 8], "resize": "pad"}, "crop_fraction=0.875 must be 1 with resize=pad"),
        ({"image_size": [8, 8], "crop_rounding": "up"}, "crop_rounding='up' is unknown"),
        ({"image_size": [8, 8], "mean": [0.5]}, "mean=.* must be 3 numbers"),
        ({"image_size": [8, 8], "std": [0.5, 0.0, 0.5]}, "std=0.0 must be more than 0"),
    ],
)
def test_impossible_value_is_a_user_error(values, message):
    with pytest.raises(UserError, match=message.replace("|", r"\|")):
        Preprocess.from_dict(values)
