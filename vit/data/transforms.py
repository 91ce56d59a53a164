"""Step 2 in training: RGB image -> randomly cropped, changed uint8 `c h w`.

The order is that of the official codes (big_vision, DeiT): crop, flip, 3-Augment or RandAugment,
colour jitter, tensor, erasing. Every draw comes from torch's global generator, which the data set
seeds for each sample. Only what is switched on runs, and torchvision is imported only by the
options that are its code ('simple', randaugment, color_jitter).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from vit.data.preprocess import (
    Interpolation,
    center_crop,
    check_choice,
    pillow_filter,
    resize_to_cover,
    to_tensor,
)
from vit.errors import UserError

Crop = Literal["inception", "pad", "simple", "none"]

CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of an inception crop, drawn uniformly in its logarithm."""

ERASED_AREA, ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Share of the image that is erased and the box's aspect: the values of DeiT and timm."""

MAX_MAGNITUDE = 30
"""The strongest RandAugment magnitude of torchvision."""


@dataclass(frozen=True, kw_only=True)
class TrainTransform:
    """Random changes of a training image.

    The defaults are the ViT paper's: inception crop and flip (vit_jax/input_pipeline.py).
    """

    crop: Crop = "inception"
    """How image_size is cut out. inception: a random box of crop_area and aspect 3/4 to 4/3,
    resized (photos). pad: resized to cover image_size, padded with crop_padding black pixels,
    random window (small images such as CIFAR). simple: the same with a reflected border, DeiT
    III's simple random crop. none: resized to cover image_size, centre window."""

    crop_area: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest share of the image's area in an inception crop."""

    crop_padding: int = 4
    """Pixels added on each side by the crops pad and simple."""

    flip: bool = True
    """Mirror left and right with probability 1/2. Switch it off where sides matter (digits)."""

    randaugment: tuple[int, int] | None = None
    """RandAugment's number of operations and magnitude from 0 to 30, such as [2, 9]. This is
    torchvision's version (bilinear, gray fill), not TensorFlow's: its 14 operations always apply
    at full strength, and a magnitude of TensorFlow's scale (10 rotates by 30 degrees) is three
    times as much here."""

    three_augment: bool = False
    """DeiT III's 3-Augment: each image is made gray, solarized or blurred, with equal chance."""

    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation; DeiT III uses 0.3."""

    erasing: float = 0.0
    """Probability that a box of 2 to 33 percent of the image is filled with noise; DeiT uses
    0.25."""

    interpolation: Interpolation = "bilinear"
    """Filter of the resize: bilinear, bicubic (DeiT) or box."""

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, get_args(Crop))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        low, high = self.crop_area
        if not 0 < low <= high <= 1:
            raise UserError(f"crop_area={self.crop_area} must be 0 < smallest <= largest <= 1")
        if self.crop_padding < 0:
            raise UserError(f"crop_padding={self.crop_padding} must be 0 pixels or more")
        if self.randaugment is not None:
            operations, magnitude = self.randaugment
            if operations < 1 or not 0 <= magnitude <= MAX_MAGNITUDE:
                rule = f"1 operation or more and a magnitude from 0 to {MAX_MAGNITUDE}"
                raise UserError(f"randaugment={self.randaugment} must be {rule}")
        if self.color_jitter < 0:
            raise UserError(f"color_jitter={self.color_jitter} must be 0 or more")
        if not 0 <= self.erasing <= 1:
            raise UserError(f"erasing={self.erasing} is a probability: it must be in [0, 1]")

    def __call__(
        self,
        image: Image.Image,
        image_size: tuple[int, int],
        *,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
    ) -> Tensor:
        """RGB image -> uint8 `c h w` of `image_size` (height, width).

        `mean` and `std` are those of the normalisation that follows; erasing needs them.
        """
        image = self._cropped(image, image_size)
        if self.flip and torch.rand(1).item() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if self.three_augment:
            image = _three_augment(image)
        if self.randaugment is not None:
            image = _randaugment(*self.randaugment)(image)
        if self.color_jitter:
            image = _color_jitter(self.color_jitter)(image)
        pixels = to_tensor(image)
        if self.erasing and torch.rand(1).item() < self.erasing:
            erase(pixels, mean, std)
        return pixels

    def _cropped(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        if self.crop == "inception":
            top, left, height, width = inception_box(image.height, image.width, self.crop_area)
            # One pass over the box only. The filter may look a few pixels beyond the box's edge,
            # which cropping first would not: those pixels belong to the photo, too.
            box = (left, top, left + width, top + height)
            return image.resize((size[1], size[0]), pillow_filter(self.interpolation), box=box)
        image = resize_to_cover(image, size, self.interpolation)
        if self.crop == "pad":
            return pad_crop(image, size, self.crop_padding)
        if self.crop == "simple":
            return _simple_crop(size, self.crop_padding)(image)
        return center_crop(image, size)


def inception_box(height: int, width: int, area: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop (GoogLeNet, arXiv:1409.4842, section 6).

    The boxes and the draws of torchvision's RandomResizedCrop: the largest centred box of an
    allowed aspect after ten misses.
    """
    box = _random_box(height, width, area, CROP_ASPECT)
    if box is not None:
        return box
    narrowest, widest = CROP_ASPECT
    if width / height < narrowest:
        box_height, box_width = round(width / narrowest), width
    elif width / height > widest:
        box_height, box_width = height, round(height * widest)
    else:
        box_height, box_width = height, width
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def pad_crop(image: Image.Image, size: tuple[int, int], padding: int) -> Image.Image:
    """A random window of `size` (height, width) from the image with a black border.

    The CIFAR augmentation of ResNet (arXiv:1512.03385, section 4.2), drawn as torchvision's
    RandomCrop draws it.
    """
    top = _randint(image.height + 2 * padding - size[0]) - padding
    left = _randint(image.width + 2 * padding - size[1]) - padding
    return image.crop((left, top, left + size[1], top + size[0]))  # black outside the image


def _three_augment(image: Image.Image) -> Image.Image:
    """Gray, solarized or blurred with equal chance (DeiT III, arXiv:2204.07118; augment.py)."""
    choice = _randint(2)
    if choice == 0:
        return image.convert("L").convert("RGB")
    if choice == 1:
        return ImageOps.solarize(image)
    return image.filter(ImageFilter.GaussianBlur(_uniform(0.1, 2.0)))


def erase(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Fill a random box of uint8 `c h w` with noise, in place.

    DeiT's random erasing (arXiv:1708.04896, mode 'pixel'): standard normal noise per value in
    the units of the normalised image. It deviates in that noise beyond black and white is
    clipped: 3 % of it with ImageNet's mean and std, 32 % with 0.5 and 0.5.
    """
    channels, height, width = pixels.shape
    box = _random_box(height, width, ERASED_AREA, ERASED_ASPECT, margin=1)
    if box is None:
        return
    top, left, box_height, box_width = box
    scale, shift = (torch.tensor(v).view(-1, 1, 1) * 255 for v in (std, mean))
    noise = torch.randn(channels, box_height, box_width) * scale + shift
    noise = noise.round_().clamp_(0, 255).to(torch.uint8)
    pixels[:, top : top + box_height, left : left + box_width] = noise


def _random_box(
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
    margin: int = 0,
) -> tuple[int, int, int, int] | None:
    """Top, left, height and width of a box at least `margin` smaller than the image, or None."""
    low, high = (math.log(ratio) for ratio in aspect)
    for _ in range(10):
        target = height * width * _uniform(*area)
        ratio = math.exp(_uniform(low, high))
        box_width, box_height = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < box_width <= width - margin and 0 < box_height <= height - margin:
            return _randint(height - box_height), _randint(width - box_width), box_height, box_width
    return None


def _uniform(low: float, high: float) -> float:
    return torch.empty(1).uniform_(low, high).item()


def _randint(largest: int) -> int:
    return int(torch.randint(largest + 1, (1,)).item())


# torchvision's modules hold nothing but their settings, so one of each serves every image.


@cache
def _simple_crop(size: tuple[int, int], padding: int) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import RandomCrop

    return RandomCrop(size, padding=padding, padding_mode="reflect")


@cache
def _randaugment(operations: int, magnitude: int) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import InterpolationMode, RandAugment

    gray = [128.0, 128.0, 128.0]
    bilinear = InterpolationMode.BILINEAR
    return RandAugment(operations, magnitude, MAX_MAGNITUDE + 1, interpolation=bilinear, fill=gray)


@cache
def _color_jitter(strength: float) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import ColorJitter

    return ColorJitter(strength, strength, strength)
