"""Training transforms: torchvision's draws and pixels where it has them, closed forms elsewhere."""

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode

from vit.data.transforms import TrainTransform, erase, inception_box
from vit.errors import UserError
from vit.preprocessing import to_tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(height, width, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def compose(steps) -> Any:  # torchvision annotates its transforms as tensor to tensor
    return transforms.Compose(steps)


def smooth(height, width):
    y, x = np.mgrid[0:height, 0:width]
    channels = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return Image.fromarray(np.stack(channels, axis=-1).astype(np.uint8))


def still(**options):
    """Nothing random but what `options` switch on."""
    return TrainTransform(**{"crop": "none", "flip": False} | options)


def seeded(seed, function, *args, **kwargs):
    torch.manual_seed(seed)
    return function(*args, **kwargs)


# Crops


@pytest.mark.parametrize("area", [(0.05, 1.0), (0.08, 1.0), (0.9, 1.0)])
@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 375), (32, 32), (2, 3), (1, 1), (10, 400), (400, 10)]
)
def test_inception_boxes_are_torchvisions(height, width, area):
    image = Image.new("RGB", (width, height))
    for seed in range(300):
        expected = seeded(
            seed, transforms.RandomResizedCrop.get_params, image, area, (3 / 4, 4 / 3)
        )
        assert seeded(seed, inception_box, height, width, area) == expected


def test_inception_crop_of_five_percent_does_occur():
    # The paper's smallest area is 0.05, not torchvision's 0.08.
    boxes = [seeded(seed, inception_box, 400, 400, (0.05, 1.0)) for seed in range(2000)]
    shares = np.array([height * width / 400**2 for _, _, height, width in boxes])
    assert 0.049 < shares.min() < 0.055
    assert abs(np.median(shares) - 0.5) < 0.1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_inception_crop_shows_what_torchvision_shows(interpolation):
    image = smooth(160, 200)
    reference = transforms.RandomResizedCrop(
        (40, 48), scale=(0.05, 1.0), interpolation=InterpolationMode(interpolation)
    )
    transform = TrainTransform(flip=False, interpolation=interpolation)
    for seed in range(30):
        ours = seeded(seed, transform, image, (40, 48)).int()
        theirs = to_tensor(seeded(seed, reference, image)).int()
        assert (ours - theirs).abs().max() <= 1  # the same within rounding


def test_crop_area_is_used():
    image = noise(64, 64)
    whole = seeded(0, TrainTransform(flip=False, crop_area=(1.0, 1.0)), image, (64, 64))
    assert torch.equal(whole, to_tensor(image))  # no box of that area but the whole image
    part = seeded(0, TrainTransform(flip=False, crop_area=(0.05, 0.1)), image, (64, 64))
    assert not torch.equal(part, whole)


@pytest.mark.parametrize("padding", [0, 2, 4])
def test_pad_crop_and_flip_equal_torchvision_to_the_bit(padding):
    image = noise(32, 32)
    transform = TrainTransform(crop="pad", crop_padding=padding)
    reference = compose(
        [
            transforms.RandomCrop(32, padding=padding),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    if padding == 0:  # torchvision draws nothing where there is one window only
        assert torch.equal(still(crop="pad", crop_padding=0)(image, (32, 32)), to_tensor(image))
        return
    for seed in range(100):
        ours = seeded(seed, transform, image, (32, 32))
        assert torch.equal(ours, seeded(seed, reference, image))


def test_pad_crop_resizes_an_image_of_another_size_first():
    image = smooth(90, 60)
    reference = compose(
        [transforms.Resize(32), transforms.RandomCrop(32, padding=4), transforms.PILToTensor()]
    )
    for seed in range(20):
        ours = seeded(seed, still(crop="pad"), image, (32, 32))
        assert torch.equal(ours, seeded(seed, reference, image))


@pytest.mark.parametrize("padding", [4, 7])
def test_simple_crop_is_that_of_deit_iii(padding):
    image = noise(90, 60)
    transform = TrainTransform(crop="simple", crop_padding=padding, interpolation="bicubic")
    reference = compose(
        [
            transforms.Resize(32, interpolation=InterpolationMode.BICUBIC),
            transforms.RandomCrop(32, padding=padding, padding_mode="reflect"),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    for seed in range(50):
        ours = seeded(seed, transform, image, (32, 32))
        assert torch.equal(ours, seeded(seed, reference, image))


@pytest.mark.parametrize("squash", [False, True])
def test_resize_random_is_resize_then_random_crop(squash):
    # big_vision: resize_small(448)|random_crop(384) and resize(448)|random_crop(384).
    image = noise(90, 60)
    transform = still(crop="resize_random", resize_size=40, resize_squash=squash)
    reference = compose(
        [
            transforms.Resize((40, 40) if squash else 40),
            transforms.RandomCrop((24, 32)),
            transforms.PILToTensor(),
        ]
    )
    for seed in range(50):
        ours = seeded(seed, transform, image, (24, 32))
        assert torch.equal(ours, seeded(seed, reference, image))


def test_window_larger_than_resize_size_is_a_user_error():
    transform = still(crop="resize_random", resize_size=40)
    transform.check_size((40, 40))
    with pytest.raises(UserError, match=r"resize_size=40 is smaller than image_size=\(40, 41\)"):
        transform(noise(90, 60), (40, 41))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_crop_none_is_the_evaluation_geometry(interpolation):
    image = noise(90, 60)
    reference = compose(
        [
            transforms.Resize(32, interpolation=InterpolationMode(interpolation)),
            transforms.CenterCrop(32),
            transforms.PILToTensor(),
        ]
    )
    ours = still(interpolation=interpolation)(image, (32, 32))
    assert torch.equal(ours, reference(image))


@pytest.mark.parametrize("crop", ["inception", "pad", "simple", "none"])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (8, 8), (70, 30), (1, 2000)])
def test_every_crop_gives_height_before_width_in_uint8(crop, height, width):
    pixels = TrainTransform(crop=crop)(noise(height, width), (24, 40))
    assert pixels.shape == (3, 24, 40)
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()


# Colours and noise


def test_flip_mirrors_every_second_image():
    image = noise(4, 6)
    mirrored = to_tensor(image).flip(-1)
    count = sum(
        torch.equal(seeded(seed, still(flip=True), image, (4, 6)), mirrored) for seed in range(1000)
    )
    assert abs(count - 500) < 60  # 3.8 standard deviations
    assert torch.equal(still(flip=False)(image, (4, 6)), to_tensor(image))


def test_three_augment_is_gray_solarize_or_blur_equally_often():
    image = noise(16, 16)
    gray = to_tensor(transforms.Grayscale(3)(image))
    solarized = to_tensor(compose([transforms.RandomSolarize(128, p=1.0)])(image))
    spread = to_tensor(image).float().std()
    counts = {"gray": 0, "solarize": 0, "blur": 0}
    spreads = []
    for seed in range(900):
        pixels = seeded(seed, still(three_augment=True), image, (16, 16))
        if torch.equal(pixels, gray):
            counts["gray"] += 1
        elif torch.equal(pixels, solarized):
            counts["solarize"] += 1
        else:
            counts["blur"] += 1
            spreads.append((pixels.float().std() / spread).item())
    assert all(abs(count - 300) < 60 for count in counts.values()), counts
    assert max(spreads) <= 1  # a blur flattens noise: hardly at radius 0.1, nearly all at 2
    assert max(spreads) > 0.95
    assert min(spreads) < 0.3


@pytest.mark.parametrize("setting", [(2, 9), (1, 9), (2, 30)])
def test_randaugment_is_torchvisions(setting):
    image = smooth(40, 40)
    reference = transforms.RandAugment(
        *setting, interpolation=InterpolationMode.BILINEAR, fill=[128.0] * 3
    )
    for seed in range(60):
        ours = seeded(seed, still(randaugment=setting), image, (40, 40))
        assert torch.equal(ours, to_tensor(seeded(seed, reference, image)))


@pytest.mark.parametrize("strength", [0.3, 0.9])
def test_color_jitter_is_torchvisions(strength):
    image = smooth(20, 20)
    reference = transforms.ColorJitter(strength, strength, strength)
    for seed in range(30):
        ours = seeded(seed, still(color_jitter=strength), image, (20, 20))
        assert torch.equal(ours, to_tensor(seeded(seed, reference, image)))


def test_order_is_crop_flip_augment_jitter():
    image = smooth(40, 40)
    transform = TrainTransform(crop="pad", randaugment=(2, 9), color_jitter=0.3)
    reference = compose(
        [
            transforms.RandomCrop(40, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.RandAugment(
                2, 9, interpolation=InterpolationMode.BILINEAR, fill=[128.0] * 3
            ),
            transforms.ColorJitter(0.3, 0.3, 0.3),
            transforms.PILToTensor(),
        ]
    )
    for seed in range(60):
        ours = seeded(seed, transform, image, (40, 40))
        assert torch.equal(ours, seeded(seed, reference, image))


def test_erasing_leaves_the_rest_and_has_deits_area_and_probability():
    image = Image.new("RGB", (64, 64), (255, 0, 255))
    clean = to_tensor(image)
    shares = []
    for seed in range(1500):
        pixels = seeded(seed, still(erasing=0.25), image, (64, 64), mean=MEAN, std=STD)
        changed = (pixels != clean).any(0)
        if changed.any():
            rows, columns = changed.any(1).nonzero().ravel(), changed.any(0).nonzero().ravel()
            height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
            assert changed.float().sum() / (height * width) > 0.9  # one full box
            shares.append((height * width / 64**2).item())
    assert abs(len(shares) / 1500 - 0.25) < 0.045  # 4 standard deviations
    assert 0.015 < min(shares) < 0.04
    assert 0.30 < max(shares) < 0.345
    assert abs(np.mean(shares) - (0.02 + 1 / 3) / 2) < 0.025


def test_erasing_boxes_are_those_of_timm():
    random_erasing = pytest.importorskip("timm.data.random_erasing").RandomErasing
    random.seed(0)  # timm draws from Python's generator
    theirs = random_erasing(probability=1.0, mode="pixel", device="cpu")

    def sides(erased):
        changed = (erased != 2).any(0)
        return [changed.any(1).sum().item(), changed.any(0).sum().item()]

    reference = [sides(theirs(torch.full((3, 48, 48), 2.0))) for _ in range(1500)]
    ours = []
    for seed in range(1500):
        pixels = torch.full((3, 48, 48), 2, dtype=torch.uint8)
        seeded(seed, erase, pixels, (0.9,) * 3, (0.01,) * 3)
        ours.append(sides(pixels))
    assert np.allclose(np.mean(ours, 0), np.mean(reference, 0), rtol=0.06)
    assert np.allclose(np.std(ours, 0), np.std(reference, 0), rtol=0.1)


def test_erased_box_is_smaller_than_the_image_on_both_sides():
    for seed in range(300):
        pixels = torch.zeros(3, 5, 5, dtype=torch.uint8)
        seeded(seed, erase, pixels, (0.9,) * 3, (0.01,) * 3)
        assert 1 <= pixels[0].any(0).sum() < 5
        assert 1 <= pixels[0].any(1).sum() < 5


def test_erasing_uses_the_given_mean_and_std():
    black = Image.new("RGB", (32, 32))
    mean, std = (0.9, 0.6, 0.3), (0.02, 0.01, 0.03)
    pixels = seeded(0, still(erasing=1.0), black, (32, 32), mean=mean, std=std)
    erased = pixels[:, pixels[0] > 0].double() / 255
    assert torch.allclose(erased.mean(1), torch.tensor(mean).double(), atol=0.01)
    assert torch.allclose(erased.std(1), torch.tensor(std).double(), rtol=0.4)


def test_erasing_noise_is_standard_normal_once_normalised():
    values = []
    for seed in range(60):
        pixels = torch.zeros(3, 96, 96, dtype=torch.uint8)
        seeded(seed, erase, pixels, (0.5, 0.45, 0.4), (0.1, 0.05, 0.08))  # little is clipped
        values.append(pixels[:, pixels.bool().any(0)])
    found = torch.cat(values, dim=1).double() / 255
    normalised = (found - torch.tensor([[0.5], [0.45], [0.4]])) / torch.tensor(
        [[0.1], [0.05], [0.08]]
    )
    assert normalised.mean(1).abs().max() < 0.02
    assert (normalised.std(1) - 1).abs().max() < 0.02
    assert torch.corrcoef(normalised).fill_diagonal_(0).abs().max() < 0.02  # each value its own


def test_sample_is_a_function_of_the_seed():
    transform = TrainTransform(
        randaugment=(2, 9), three_augment=True, color_jitter=0.3, erasing=1.0
    )
    image = noise(50, 60)
    first = seeded(7, transform, image, (32, 32))
    seeded(8, transform, noise(9, 9), (32, 32))  # what came before does not matter
    assert torch.equal(seeded(7, transform, image, (32, 32)), first)
    assert not torch.equal(seeded(8, transform, image, (32, 32)), first)


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": "inceptoin"}, "crop='inceptoin' is unknown; did you mean 'inception'"),
        ({"crop": "zoom"}, r"choose inception \| pad \| simple \| resize_random \| none"),
        ({"interpolation": "sinc"}, "interpolation='sinc' is unknown"),
        ({"crop_area": (0.0, 1.0)}, r"crop_area=\(0.0, 1.0\) must be 0 < smallest"),
        ({"crop_area": (0.5, 0.2)}, "crop_area"),
        ({"crop_area": (0.5, 1.2)}, "crop_area"),
        ({"crop_padding": -1}, "crop_padding=-1 must be 0 pixels or more"),
        ({"randaugment": (0, 9)}, r"randaugment=\(0, 9\) must be 1 operation or more"),
        ({"randaugment": (2, 31)}, "a magnitude from 0 to 30"),
        ({"randaugment_variant": "tff"}, "randaugment_variant='tff' is unknown; did you mean 'tf'"),
        (
            {"randaugment": (2, 11), "randaugment_variant": "timm"},
            r"randaugment=\(2, 11\) must be .* from 0 to 10 \(timm\)",
        ),
        (
            {"interpolation": "box"},
            "interpolation='box' is unknown",
        ),
        ({"crop": "resize_random"}, "resize_size=None: crop='resize_random' needs resize_size"),
        ({"crop": "resize_random", "resize_size": 0}, "resize_size=0"),
        ({"resize_size": 448}, "resize_size belongs to crop='resize_random'"),
        ({"resize_squash": True}, "resize_squash belongs to crop='resize_random'"),
        ({"color_jitter": -0.1}, "color_jitter=-0.1 must be 0 or more"),
        ({"erasing": 25}, "erasing=25 is a probability"),
    ],
)
def test_impossible_setting_is_a_user_error(options, message):
    with pytest.raises(UserError, match=message):
        TrainTransform(**options)


@pytest.mark.parametrize("crop", ["inception", "pad", "none"])
def test_crop_and_flip_do_not_import_torchvision(crop):
    code = (
        "import sys; sys.modules['torchvision'] = None\n"
        "from PIL import Image\n"
        "from vit.data.transforms import TrainTransform\n"
        f"print(TrainTransform(crop={crop!r})(Image.new('RGB', (9, 9)), (8, 8)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[3, 8, 8]" in done.stdout
