"""Windows cut from whole batches, against one image at a time in plain NumPy."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data.transforms import TrainTransform
from vit.data.windows import Windows, evaluation_windows, key_bits, planar
from vit.preprocessing import Preprocess

KEYS = np.array([(e, i, r) for e in range(3) for i in range(40) for r in range(2)])


def pixels(count, height, width, seed=0):
    shape = (count, height, width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def splitmix(value):
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def test_splitmix_is_the_published_one():
    # The first outputs of the generator for the seed 1234567, from Rosetta Code.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix(state))
        state += 0x9E3779B97F4A7C15
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 7, -1])
def test_bits_are_splitmix_over_seed_epoch_index_and_repeat(seed):
    for key, bits in zip(KEYS.tolist(), key_bits(seed, KEYS), strict=True):
        epoch, index, repeat = key
        expected = splitmix(splitmix(splitmix(seed % 2**64) ^ epoch) ^ (index | repeat << 40))
        assert int(bits) == expected


def test_bits_of_different_keys_are_independent():
    wide = np.array([(e, i, r) for e in range(20) for i in range(500) for r in range(2)])
    bits = np.concatenate([key_bits(seed, wide) for seed in (0, 1)])
    assert len(np.unique(bits)) == len(bits)
    ones = np.unpackbits(bits.view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(ones.mean(0) - 0.5).max() < 0.5 * 4.5 / np.sqrt(len(bits))
    correlation = np.corrcoef(ones.T.astype(float)) - np.eye(64)
    assert np.abs(correlation).max() < 5 / np.sqrt(len(bits))
    following = np.corrcoef(bits[:-1].astype(float), bits[1:].astype(float))[0, 1]
    assert abs(following) < 0.02


@pytest.mark.parametrize("reflect", [False, True])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("height", "width"), [(12, 12), (10, 17)])
def test_a_window_is_a_slice_of_the_padded_image_or_its_mirror_image(height, width, flip, reflect):
    source = pixels(40, height, width)
    windows = Windows(
        size=(10, 9), resized=(10, 9), padding=3, reflect=reflect, random=True, flip=flip
    )
    bits = key_bits(0, KEYS)
    cut = windows.cut(planar(source), KEYS[:, 1], bits)
    assert cut.dtype == torch.uint8 and cut.is_contiguous() and cut.shape == (240, 3, 10, 9)
    mode = "reflect" if reflect else "constant"
    padded = np.pad(source, ((0, 0), (3, 3), (3, 3), (0, 0)), mode=mode)
    flips = 0
    for window, key, bit in zip(cut.numpy(), KEYS, bits.tolist(), strict=True):
        top = (bit >> 32) * (height - 10 + 7) >> 32
        left = (bit >> 1 & 0x7FFFFFFF) * (width - 9 + 7) >> 31
        expected = padded[key[1], top : top + 10, left : left + 9].transpose(2, 0, 1)
        if flip and bit & 1:
            expected, flips = expected[..., ::-1], flips + 1
        assert np.array_equal(window, expected)
    assert not flip or 90 < flips < 150


def test_all_windows_are_drawn_equally_often_and_half_of_them_mirrored():
    keys = np.array([(e, i, 0) for e in range(27) for i in range(1200)])
    marks = np.zeros((1200, 4, 4, 3), np.uint8)
    marks[:, 0, 0] = 1
    windows = Windows(size=(4, 4), resized=(4, 4), padding=1, random=True, flip=True)
    cut = windows.cut(planar(marks), keys[:, 1], key_bits(5, keys))[:, 0]
    # With its corner outside, a window is black: one row or column of the nine places.
    places = Counter(
        tuple(place)
        for mark in cut[cut.flatten(1).any(1).bool()]
        for place in mark.nonzero().tolist()
    )
    expected = len(keys) / 9 / 2
    assert len(places) == 8  # four corners' positions, each of both hands
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in places.values())
    assert abs(sum(places.values()) - len(keys) * 4 / 9) < 5 * np.sqrt(len(keys) * 20 / 81)


@pytest.mark.parametrize("crop", ["pad", "simple", "resize_random", "none"])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (21, 30)])
def test_one_image_is_cut_as_in_a_batch(crop, height, width):
    options = {"resize_size": 20, "resize_squash": True} if crop == "resize_random" else {}
    windows = TrainTransform(crop=crop, **options).windows((16, 16))
    assert windows is not None
    source = pixels(5, height, width)
    images = [Image.fromarray(image) for image in source]
    resized = np.stack([np.asarray(windows.resize(image)) for image in images])
    keys = KEYS[KEYS[:, 1] < 5]
    batch = windows.cut(planar(resized), keys[:, 1], key_bits(1, keys))
    for window, key in zip(batch, keys, strict=True):
        one = windows.cut_one(images[key[1]], key_bits(1, key[None]))
        assert torch.equal(one, window) and one.is_contiguous()


def test_windows_have_torchvisions_resize():
    from torchvision.transforms import CenterCrop, Compose, PILToTensor, Resize

    image = Image.fromarray(pixels(1, 33, 50)[0])
    windows = TrainTransform(crop="none", flip=False).windows((16, 16))
    assert windows is not None
    resize: Any = Compose([Resize(16), CenterCrop(16), PILToTensor()])
    expected = resize(image)
    assert torch.equal(windows.cut_one(image, np.zeros(1, np.uint64)), expected)


@pytest.mark.parametrize(
    "change",
    [
        {"crop": "inception"},
        {"randaugment": (2, 9)},
        {"three_augment": True},
        {"color_jitter": 0.1},
        {"erasing": 0.1},
    ],
)
def test_other_augmentation_has_no_windows(change):
    assert TrainTransform(crop="pad").windows((8, 8)) is not None
    assert TrainTransform(**{"crop": "pad"} | change).windows((8, 8)) is None


def test_fields_of_the_transform_reach_the_windows():
    transform = TrainTransform(
        crop="resize_random",
        resize_size=12,
        resize_squash=True,
        flip=False,
        interpolation="bicubic",
    )
    assert transform.windows((8, 6)) == Windows(
        size=(8, 6), resized=(12, 12), squash=True, random=True, interpolation="bicubic"
    )
    assert TrainTransform(crop="pad", crop_padding=2).windows((8, 6)) == Windows(
        size=(8, 6), resized=(8, 6), padding=2, random=True, flip=True
    )
    assert TrainTransform(crop="simple", crop_padding=2).windows((8, 6)) == Windows(
        size=(8, 6), resized=(8, 6), padding=2, reflect=True, random=True, flip=True
    )


@pytest.mark.parametrize(
    ("resize", "fraction", "size", "fits"),
    [
        ("crop", 1.0, (20, 20), True),
        ("crop", 1.0, (20, 31), True),
        ("crop", 1.0, (21, 31), False),
        ("crop", 0.8, (25, 40), True),
        ("crop", 0.8, (20, 20), False),
        ("squash", 0.8, (25, 25), True),
        ("squash", 0.8, (25, 26), False),
        ("crop", 1.0, (20, 2001), False),
    ],
)
def test_evaluation_in_batches_is_the_preprocessing(resize, fraction, size, fits):
    preprocess = Preprocess(image_size=(20, 20), resize=resize, crop_fraction=fraction)
    windows = evaluation_windows(preprocess)
    assert windows.fits(*size) == fits
    if fits:
        source = pixels(6, *size)
        batch = windows.cut(planar(source), np.arange(6))
        for image, window in zip(source, batch, strict=True):
            assert torch.equal(preprocess(Image.fromarray(image)), window)
        assert batch.is_contiguous()


def test_gray_images_have_three_equal_planes_without_a_copy():
    gray = pixels(4, 6, 5)[..., 0]
    planes = planar(gray)
    assert planes.shape == (4, 3, 6, 5) and np.shares_memory(planes, gray)
    windows = Windows(size=(6, 5), resized=(6, 5))
    batch = windows.cut(planes, np.array([2, 0]))
    assert batch.is_contiguous()
    assert all(np.array_equal(channel, gray[2]) for channel in batch[0].numpy())
