"""Training transforms: torchvision's draws and pixels where it has them, closed forms elsewhere."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from tests.pictures import noise
from vit.data.transforms import (
    TrainTransform,
    inception_box,
    sample_bits,
    seeded,
)
from vit.errors import UserError
from vit.extensions.recipes.randaugment import RandAugment
from vit.preprocessing import to_tensor


def compose(steps) -> Any:  # torchvision annotates its transforms as tensor to tensor
    return transforms.Compose(steps)


def smooth(height, width):
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def still(**options):
    """Nothing random but what `options` switch on."""
    return TrainTransform(**{"crop": "none", "flip": False} | options)


def after(seed, function, *args, **kwargs):
    """What torch's global generator draws from a seed; `TrainTransform` takes its bits as one."""
    torch.manual_seed(seed)
    return function(*args, **kwargs)


def many(count):
    """The bits of so many samples."""
    return [sample_bits(0, 0, index, 0) for index in range(count)]


# Bits

KEYS = np.array([(e, i, r) for e in range(20) for i in range(500) for r in range(2)], np.uint64)


def test_bits_are_splitmix_over_seed_epoch_index_and_copy():
    def splitmix(value):
        mask = 2**64 - 1
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    # The first outputs of the generator for the seed 1234567, from Rosetta Code.
    outputs = [splitmix(1234567 + step * 0x9E3779B97F4A7C15) for step in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    for seed in (0, 7, 2**63):
        whole = sample_bits(seed, *KEYS.T)
        for key, bits in list(zip(KEYS.tolist(), whole, strict=True))[::997]:
            expected = splitmix(splitmix(splitmix(seed) ^ key[0]) ^ (key[1] | key[2] << 40))
            assert int(bits) == sample_bits(seed, *key) == expected


def test_the_global_generator_is_put_back(monkeypatch):
    monkeypatch.setattr(torch, "manual_seed", None)  # it would seed the accelerators, too
    before = torch.get_rng_state()
    TrainTransform(erasing=1.0)(noise(9, 9), 5, (8, 8))
    with pytest.raises(ZeroDivisionError), seeded(1):
        torch.rand(1)
        _ = 1 / 0
    assert torch.equal(before, torch.get_rng_state())


# Crops


@pytest.mark.parametrize("area", [(0.05, 1.0), (0.08, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (32, 32), (2, 3), (1, 1), (10, 400), (400, 10)]
)
def test_inception_boxes_are_torchvisions(height, width, area):
    image = Image.new("RGB", (width, height))
    for seed in range(100):
        expected = after(seed, transforms.RandomResizedCrop.get_params, image, area, (3 / 4, 4 / 3))
        assert after(seed, inception_box, height, width, area) == expected


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_inception_crop_shows_what_torchvision_shows(interpolation):
    image = smooth(160, 200)
    reference = transforms.RandomResizedCrop(
        (40, 48), scale=(0.05, 1.0), interpolation=InterpolationMode(interpolation)
    )
    transform = TrainTransform(flip=False, interpolation=interpolation)
    for seed in range(30):
        ours = transform(image, seed, (40, 48)).int()
        theirs = to_tensor(after(seed, reference, image)).int()
        assert (ours - theirs).abs().max() <= 1  # the same within rounding


WINDOWS = [
    # big_vision: resize_small(448)|random_crop(384) and resize(448)|random_crop(384).
    ({"crop": "resize_random", "resize_size": 40}, [transforms.Resize(40)]),
    (
        {"crop": "resize_random", "resize_size": 40, "resize_squash": True},
        [transforms.Resize((40, 40))],
    ),
    ({"crop": "pad", "crop_padding": 0}, [transforms.Resize(32)]),
    ({"crop": "pad", "crop_padding": 5}, [transforms.Resize(32), transforms.Pad(5)]),
    (  # DeiT III's simple random crop
        {"crop": "simple", "interpolation": "bicubic"},
        [
            transforms.Resize(32, interpolation=InterpolationMode.BICUBIC),
            transforms.Pad(4, padding_mode="reflect"),
        ],
    ),
    ({"crop": "none", "resize_squash": True}, [transforms.Resize((32, 32))]),  # VTAB
    (
        {"crop": "none", "interpolation": "bicubic"},
        [
            transforms.Resize(32, interpolation=InterpolationMode.BICUBIC),
            transforms.CenterCrop(32),
        ],
    ),
]


@pytest.mark.parametrize(("options", "steps"), WINDOWS)
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (90, 61)])
def test_a_window_is_a_slice_of_torchvisions_image(options, steps, flip, height, width):
    image = noise(height, width)
    whole = to_tensor(compose(steps)(image))
    transform = TrainTransform(**options, flip=flip)
    rows, columns = whole.shape[1] - 32 + 1, whole.shape[2] - 32 + 1
    mirrored = 0
    for bits in many(40):
        top, left = (bits >> 32) * rows >> 32, (bits >> 1 & 0x7FFFFFFF) * columns >> 31
        expected = whole[:, top : top + 32, left : left + 32]
        if flip and bits & 1:
            expected, mirrored = expected.flip(-1), mirrored + 1
        pixels = transform(image, bits, (32, 32))
        assert torch.equal(pixels, expected) and pixels.is_contiguous()
    assert (8 < mirrored < 32) == flip


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
@pytest.mark.parametrize("options", [options for options, _ in WINDOWS])
def test_a_batch_is_cut_as_its_images_are(options, kind):
    transform = TrainTransform(**options)
    images = [torch.from_numpy(np.asarray(noise(32, 45, i)).astype(kind)) for i in range(5)]
    planes = [transform.fit(image.permute(2, 0, 1), (32, 32)) for image in images]
    bits = np.array(many(5), np.uint64)
    batch = transform(torch.stack(planes), bits, (32, 32))
    assert batch.is_contiguous()
    for image, number, window in zip(planes, bits.tolist(), batch, strict=True):
        assert torch.equal(transform(image, number, (32, 32)), window)


def test_only_windows_take_batches():
    assert TrainTransform(crop="pad").takes_batches
    changes: list[dict[str, Any]] = [{"crop": "inception"}, {"erasing": 0.1}, {"color_jitter": 0.1}]
    for change in (*changes, {"policy": RandAugment()}, {"three_augment": True}, {"extra": id}):
        assert not TrainTransform(**{"crop": "pad"} | change).takes_batches


def test_window_larger_than_resize_size_is_a_user_error():
    transform = still(crop="resize_random", resize_size=40)
    transform.check((40, 40), None)
    with pytest.raises(UserError, match=r"resize_size=40 is smaller than image_size=\(40, 41\)"):
        transform.check((40, 41), None)
    with pytest.raises(UserError, match=r"crop_padding=4 must be smaller .*\(4, 40\)"):
        still(crop="simple").check((4, 40), None)


@pytest.mark.parametrize("crop", ["inception", "pad", "simple", "none"])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 8), (70, 30), (1, 2000)])
def test_every_crop_gives_height_before_width_in_uint8(crop, height, width):
    pixels = TrainTransform(crop=crop)(noise(height, width), 2**60 + 1, (24, 40))
    assert pixels.shape == (3, 24, 40)
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()


# Colours and noise


def test_the_last_bit_mirrors_inception_crops():
    image = smooth(40, 40)
    plain, flipping = TrainTransform(flip=False), TrainTransform()
    for bits in many(40):
        whole = plain(image, bits, (8, 8))
        expected = whole.flip(-1) if bits & 1 else whole
        assert torch.equal(flipping(image, bits, (8, 8)), expected)


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "inceptoin"}, "crop='inceptoin' is unknown; choose inception"),
        ({"interpolation": "sinc"}, "interpolation='sinc' is unknown"),
        ({"crop_area": (0.0, 1.0)}, r"crop_area=\(0.0, 1.0\) must be 0 < smallest"),
        ({"crop_area": (0.5, 0.2)}, "crop_area"),
        ({"crop_padding": -1}, "crop_padding=-1"),
        ({"crop": "resize_random"}, "resize_size=None: crop='resize_random' needs it"),
        ({"resize_size": 448}, "resize_size=448: crop='resize_random' needs it"),
        ({"resize_squash": True}, "resize_squash belongs to crop='resize_random'"),
        ({"color_jitter": -0.1}, "color_jitter=-0.1 must be at least 0"),
        ({"erasing": 25}, "erasing=25 must be in"),
    ],
)
def test_impossible_setting_is_a_user_error(options, message):
    with pytest.raises(UserError, match=message):
        TrainTransform(**options)
