"""Published changes of training images: torchvision's and timm's where they have them."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from tests.data.test_transforms import after, compose, many, noise, smooth, still
from vit.data.transforms import TrainTransform
from vit.extensions.recipes.changes import erase, to_image
from vit.extensions.recipes.randaugment import RandAugment
from vit.preprocessing import to_tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def test_three_augment_is_gray_solarize_or_blur_equally_often():
    image = noise(16, 16)
    gray = to_tensor(transforms.Grayscale(3)(image))
    solarized = to_tensor(compose([transforms.RandomSolarize(128, p=1.0)])(image))
    spread = to_tensor(image).float().std()
    counts = {"gray": 0, "solarize": 0, "blur": 0}
    spreads = []
    for seed in range(300):
        pixels = still(three_augment=True)(image, seed, (16, 16))
        if torch.equal(pixels, gray):
            counts["gray"] += 1
        elif torch.equal(pixels, solarized):
            counts["solarize"] += 1
        else:
            counts["blur"] += 1
            spreads.append((pixels.float().std() / spread).item())
    assert all(abs(count - 100) < 35 for count in counts.values()), counts
    assert max(spreads) <= 1  # a blur flattens noise: hardly at radius 0.1, nearly all at 2
    assert max(spreads) > 0.95
    assert min(spreads) < 0.3


@pytest.mark.parametrize(("setting", "jitter"), [((2, 9), 0.3), ((1, 30), 0.9)])
def test_randaugment_and_jitter_of_torchvision_follow_crop_and_flip(setting, jitter):
    image = smooth(40, 40)
    policy = RandAugment(operations=setting[0], magnitude=setting[1])
    transform = TrainTransform(crop="pad", policy=policy, color_jitter=jitter)
    bilinear = InterpolationMode.BILINEAR
    steps = [
        transforms.RandAugment(*setting, interpolation=bilinear, fill=[128.0] * 3),
        transforms.ColorJitter(jitter, jitter, jitter),
        transforms.PILToTensor(),
    ]
    for bits in many(60):
        window = TrainTransform(crop="pad")(image, bits, (40, 40))
        expected = after(bits, compose(steps), to_image(window))
        assert torch.equal(transform(image, bits, (40, 40)), expected)


def test_erasing_leaves_the_rest_and_has_its_probability():
    image = Image.new("RGB", (64, 64), (255, 0, 255))
    clean, erased = to_tensor(image), 0
    for seed in range(600):
        pixels = still(erasing=0.25)(image, seed, (64, 64), mean=MEAN, std=STD)
        changed = (pixels != clean).any(0)
        if changed.any():
            rows, columns = changed.any(1).nonzero().ravel(), changed.any(0).nonzero().ravel()
            height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
            assert changed.float().sum() / (height * width) > 0.9  # one full box
            erased += 1
    assert abs(erased / 600 - 0.25) < 0.07  # 4 standard deviations


def test_erasing_boxes_are_those_of_timm():
    random_erasing = pytest.importorskip("timm.data.random_erasing").RandomErasing
    random.seed(0)  # timm draws from Python's generator
    theirs = random_erasing(probability=1.0, mode="pixel", device="cpu")

    def sides(erased):
        changed = (erased != 2).any(0)
        return [changed.any(1).sum().item(), changed.any(0).sum().item()]

    reference = [sides(theirs(torch.full((3, 48, 48), 2.0))) for _ in range(700)]
    ours = []
    for seed in range(700):
        pixels = torch.full((3, 48, 48), 2, dtype=torch.uint8)
        after(seed, erase, pixels, (0.9,) * 3, (0.01,) * 3)
        ours.append(sides(pixels))
    assert np.allclose(np.mean(ours, 0), np.mean(reference, 0), rtol=0.1)
    assert np.allclose(np.std(ours, 0), np.std(reference, 0), rtol=0.1)


def test_erasing_noise_is_standard_normal_once_normalised():
    values = []
    for seed in range(60):
        pixels = torch.zeros(3, 96, 96, dtype=torch.uint8)
        after(seed, erase, pixels, (0.5, 0.45, 0.4), (0.1, 0.05, 0.08))  # little is clipped
        values.append(pixels[:, pixels.bool().any(0)])
    found = torch.cat(values, dim=1).double() / 255
    normalised = (found - torch.tensor([[0.5], [0.45], [0.4]])) / torch.tensor(
        [[0.1], [0.05], [0.08]]
    )
    assert normalised.mean(1).abs().max() < 0.02
    assert (normalised.std(1) - 1).abs().max() < 0.02
    assert torch.corrcoef(normalised).fill_diagonal_(0).abs().max() < 0.02  # each value its own
