"""RandAugment: timm's operations pixel by pixel, TensorFlow's own against their definition."""

import re
from collections import Counter
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.extensions.recipes import randaugment as module
from vit.extensions.recipes.randaugment import (
    GRAY,
    TF_OPERATIONS,
    TIMM_OPERATIONS,
    RandAugment,
    Surroundings,
)
from vit.preprocessing import to_tensor

NEAREST = Surroundings(GRAY, Image.Resampling.NEAREST)
RULE = "give 1 operation or more and a magnitude from 0 to"
MEAN = (0.485, 0.456, 0.406)


def picture(height=40, width=56, seed=0):
    """Noise on a slope: neither flat nor symmetric, and not of full range."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).integers(0, 60, (height, width, 3))
    slope = (rows * 2 + columns)[..., None] + np.array([0, 20, 40])
    return np.minimum(slope + noise, 250).astype(np.uint8)


@pytest.fixture(params=[1, -1])
def sign(request, monkeypatch):
    """Every argument that may be negated is, or none."""
    monkeypatch.setattr(module, "_either_sign", lambda value: request.param * value)
    return request.param


# timm


def timm_module():
    return pytest.importorskip("timm.data.auto_augment")


@pytest.mark.parametrize("name", list(TIMM_OPERATIONS))
def test_each_operation_is_timms(name, sign, monkeypatch):
    timm = timm_module()
    image = Image.fromarray(picture())
    fill = (124, 116, 104)
    # timm negates where a uniform number is above 1/2.
    monkeypatch.setattr(timm.random, "random", lambda: 0.9 if sign < 0 else 0.1)
    filters = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    for magnitude, resample in product((0.0, 4.4, 9.3, 10.0), filters):
        hparams = {"img_mean": fill, "interpolation": resample}
        theirs = timm.AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=hparams)
        ours = TIMM_OPERATIONS[name](image, magnitude / 10, Surroundings(fill, resample))
        if (name, magnitude) == ("PosterizeIncreasing", 10.0):  # timm fails on Pillow 12
            assert not np.asarray(ours).any()
        else:
            assert torch.equal(to_tensor(ours), to_tensor(theirs(image))), (magnitude, resample)


def test_timm_has_the_operations_and_the_noise_of_its_increasing_severity():
    theirs = timm_module().rand_augment_transform("rand-m9-mstd0.5-inc1", {})
    assert [operation.name for operation in theirs.ops] == list(TIMM_OPERATIONS)
    noise = {(operation.prob, operation.magnitude_std) for operation in theirs.ops}
    assert noise == {(module.APPLIED, module.MAGNITUDE_STD)}


def test_timm_applies_half_of_the_operations_at_noisy_magnitudes(monkeypatch):
    magnitudes = []
    record = module.Operation(lambda image, level, _: magnitudes.append(10 * level) or image)
    monkeypatch.setattr(module, "TIMM_OPERATIONS", {"a": record, "b": record})
    torch.manual_seed(0)
    image = Image.new("RGB", (2, 2))
    policy = RandAugment(operations=2, magnitude=9, variant="timm")
    for _ in range(2000):
        policy(image, MEAN, NEAREST.resample)
    assert abs(len(magnitudes) - 2000) < 130  # 4 standard deviations
    assert max(magnitudes) == 10  # clipped: 2.3 % of a normal distribution around 9 is above
    below = np.array(magnitudes)[np.array(magnitudes) < 10]
    assert abs(np.median(magnitudes) - 9) < 0.05
    assert abs(np.quantile(below, 0.1) - (9 - 1.28 * 0.5)) < 0.08


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": 0}, f"operations=0, magnitude=9: {RULE} 30 (torchvision)"),
        ({"magnitude": 31}, f"operations=2, magnitude=31: {RULE} 30 (torchvision)"),
        ({"magnitude": 11, "variant": "timm"}, f"magnitude=11: {RULE} 10 (timm)"),
        ({"variant": "tff"}, "variant='tff' is unknown; choose "),
    ],
)
def test_settings_that_it_does_not_have_are_refused(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        RandAugment(**options)


# TensorFlow


def moved(pixels, rows, columns):
    """Nearest pixel of (rows, columns), gray outside: ImageProjectiveTransform's definition."""
    rows, columns = np.floor(rows + 0.5).astype(int), np.floor(columns + 0.5).astype(int)
    height, width = pixels.shape[:2]
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    found = pixels[rows.clip(0, height - 1), columns.clip(0, width - 1)]
    return np.where(inside[..., None], found, 128)


def expected_geometry(name, pixels, level):
    height, width = pixels.shape[:2]
    rows, columns = np.mgrid[:height, :width].astype(float)
    if name == "Rotate":
        angle = np.deg2rad(30 * level)
        y, x = rows - (height - 1) / 2, columns - (width - 1) / 2
        return moved(
            pixels,
            np.sin(angle) * x + np.cos(angle) * y + (height - 1) / 2,
            np.cos(angle) * x - np.sin(angle) * y + (width - 1) / 2,
        )
    if name == "ShearX":
        return moved(pixels, rows, columns + 0.3 * level * rows)
    if name == "ShearY":
        return moved(pixels, rows + 0.3 * level * columns, columns)
    if name == "TranslateX":
        return moved(pixels, rows, columns + 100 * level)
    return moved(pixels, rows + 100 * level, columns)


@pytest.mark.parametrize("name", ["Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY"])
@pytest.mark.parametrize("magnitude", [0, 3, 10, 15])
def test_tf_moves_the_pixels_that_tensorflow_moves(name, magnitude, sign):
    pixels = picture(120, 140)
    ours = np.asarray(TF_OPERATIONS[name](Image.fromarray(pixels), magnitude / 10, NEAREST))
    expected = expected_geometry(name, pixels, sign * magnitude / 10)
    # Where a source lies between two pixels to the last bit, either may be taken.
    assert (ours != expected).any(-1).mean() < 0.01


@pytest.mark.parametrize("name", ["Color", "Contrast", "Brightness", "Sharpness"])
@pytest.mark.parametrize("magnitude", [0, 5, 15, 20])
def test_tf_enhances_as_timm_does_by_the_same_scale(name, magnitude):
    image = Image.fromarray(picture())
    hparams = {"magnitude_max": 20}
    theirs = timm_module().AugmentOp(name, prob=1.0, magnitude=magnitude, hparams=hparams)
    ours = TF_OPERATIONS[name](image, magnitude / 10, NEAREST)
    assert torch.equal(to_tensor(ours), to_tensor(theirs(image)))


@pytest.mark.parametrize("magnitude", [0, 5, 9, 10, 15, 20])
def test_tf_bytes_are_shifted_and_compared_as_in_tensorflow(magnitude):
    pixels, level = picture(), magnitude / 10
    shift = min(8 - int(4 * level), 7)
    lighter = (pixels + float(int(110 * level))).clip(0, 255)
    expected = {
        "Posterize": pixels >> shift << shift,
        "Solarize": np.where(pixels < int(256 * level) % 256, pixels, 255 - pixels),
        "SolarizeAdd": np.where(pixels < 128, lighter, pixels),
    }
    for name, values in expected.items():
        ours = TF_OPERATIONS[name](Image.fromarray(pixels), level, NEAREST)
        assert np.array_equal(np.asarray(ours), values), name


def test_tf_cuts_out_a_gray_box_around_any_pixel():
    image = Image.new("RGB", (120, 100), "white")
    hits = np.zeros((100, 120))
    torch.manual_seed(0)
    for _ in range(400):
        box = np.asarray(TF_OPERATIONS["Cutout"](image, 1.0, NEAREST))[..., 0] == 128
        rows, columns = box.any(1).nonzero()[0], box.any(0).nonzero()[0]
        assert box.sum() == len(rows) * len(columns)
        assert 40 <= len(rows) <= 80  # cut off at the border, centre inside
        assert 40 <= len(columns) <= 80
        hits += box
    assert hits.min() > 0
    assert (np.asarray(image) == 255).all()  # the original is left alone
    small = np.asarray(TF_OPERATIONS["Cutout"](image, 0.25, NEAREST))
    assert (small[..., 0] == 128).sum() <= 20 * 20


def test_tf_draws_all_16_operations_equally_and_always_applies_them(monkeypatch):
    counts = Counter()
    table = {
        name: module.Operation(
            partial(lambda name, image, *_: counts.update([name]) or image, name)
        )
        for name in TF_OPERATIONS
    }
    monkeypatch.setattr(module, "TF_OPERATIONS", table)
    policy = RandAugment(operations=2, magnitude=10, variant="tf")
    torch.manual_seed(0)
    for _ in range(1600):
        image = Image.new("RGB", (2, 2))
        policy(image, MEAN, NEAREST.resample)
    assert sum(counts.values()) == 3200
    assert len(counts) == 16
    assert all(abs(count - 200) < 60 for count in counts.values()), counts


def test_timm_fills_with_the_mean_by_the_filter_of_the_crop_and_tf_with_gray(monkeypatch):
    seen = []
    record = module.Operation(lambda image, _, around: seen.append(around) or image)
    monkeypatch.setattr(module, "TIMM_OPERATIONS", {"a": record})
    monkeypatch.setattr(module, "TF_OPERATIONS", {"a": record})
    image = Image.new("RGB", (8, 8))
    for variant in ("timm", "tf"):
        policy = RandAugment(operations=9, magnitude=9, variant=variant)
        transform = TrainTransform(crop="none", policy=policy, interpolation="bicubic")
        transform(image, 0, (8, 8), mean=MEAN)
    timm = Surroundings((124, 116, 104), Image.Resampling.BICUBIC)
    assert set(seen[:-9]) == {timm} and set(seen[-9:]) == {NEAREST}
