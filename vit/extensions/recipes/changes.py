"""Published changes of training images: rows of the table of changes.

All draws come from torch's global generator. Shapes: c channels, h w pixels.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from vit.data.transforms import Mean, TrainTransform, random_box
from vit.errors import UserError
from vit.preprocessing import Size, to_tensor

ERASED_AREA, ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Share of the image that is erased and the box's aspect: the values of DeiT and timm."""


class ColorChange:
    """A change of RGB images of 8 bits alone."""

    name: str
    """The field of TrainTransform."""

    def __init__(self, transform: TrainTransform) -> None: ...

    def check(self, image_size: Size, channels: int | None) -> None:
        if channels is not None:
            text = f"data.augment.{self.name} changes RGB images"
            raise UserError(f"{text}; leave it or data.channels out")

    def __call__(self, pixels: Tensor, bits: int, mean: Mean, std: Mean) -> Tensor:
        return to_tensor(self.changed(to_image(pixels), mean))

    def changed(self, image: Image.Image, mean: Mean) -> Image.Image:
        """An RGB image of the same size."""
        raise NotImplementedError


def to_image(pixels: Tensor) -> Image.Image:
    """uint8 `c h w` -> RGB image; the inverse of `to_tensor`."""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


class ThreeAugment(ColorChange):
    """Gray, solarized or blurred with equal chance (DeiT III, arXiv:2204.07118; augment.py)."""

    name = "three_augment"

    def changed(self, image: Image.Image, mean: Mean) -> Image.Image:
        choice = int(torch.randint(3, (1,)).item())
        if choice == 0:
            return image.convert("L").convert("RGB")
        if choice == 1:
            return ImageOps.solarize(image)
        radius = torch.empty(1).uniform_(0.1, 2.0).item()
        return image.filter(ImageFilter.GaussianBlur(radius))


class OfPolicy(ColorChange):
    """The policy of a transform, such as RandAugment."""

    name = "policy"

    def __init__(self, transform: TrainTransform) -> None:
        assert transform.policy is not None
        self.policy = transform.policy
        self.resample = Image.Resampling[transform.interpolation.upper()]

    def changed(self, image: Image.Image, mean: Mean) -> Image.Image:
        return self.policy(image, mean, self.resample)


class ColorJitter(ColorChange):
    """torchvision's ColorJitter of brightness, contrast and saturation."""

    name = "color_jitter"

    def __init__(self, transform: TrainTransform) -> None:
        self.strength = transform.color_jitter

    def changed(self, image: Image.Image, mean: Mean) -> Image.Image:
        return _jitter(self.strength)(image)


# It holds nothing but its settings, so one serves every image.
@cache
def _jitter(strength: float) -> Callable[[Image.Image], Any]:
    from torchvision.transforms import ColorJitter as TheirJitter

    return TheirJitter(strength, strength, strength)


class Erasing:
    """`erase` with a probability, of any number of channels."""

    def __init__(self, transform: TrainTransform) -> None:
        self.probability = transform.erasing

    def check(self, image_size: Size, channels: int | None) -> None: ...

    def __call__(self, pixels: Tensor, bits: int, mean: Mean, std: Mean) -> Tensor:
        if torch.rand(1).item() < self.probability:
            erase(pixels, mean, std)
        return pixels


def erase(pixels: Tensor, mean: Mean, std: Mean) -> None:
    """Fill a random box of uint8 or float32 `c h w` with noise, in place.

    DeiT's random erasing (arXiv:1708.04896, mode 'pixel'): each value is standard normal once
    normalised. Unlike there, uint8 noise is clipped to black and white: 3 % of it with ImageNet's
    mean and std, 32 % with 0.5 and 0.5.
    """
    channels, height, width = pixels.shape
    box = random_box(height, width, ERASED_AREA, ERASED_ASPECT, margin=1)
    if box is None:
        return
    top, left, box_height, box_width = box
    white = 1 if pixels.is_floating_point() else 255
    scale, shift = (torch.tensor(v).view(-1, 1, 1) * white for v in (std, mean))
    noise = torch.randn(channels, box_height, box_width) * scale + shift
    if white == 255:
        noise = noise.round_().clamp_(0, 255)
    pixels[:, top : top + box_height, left : left + box_width] = noise
