"""The training transform: RGB image -> randomly cropped, mirrored, changed uint8 `c h w`.

The order is that of big_vision and DeiT: crop, flip, and the table of changes. All draws come from
one number per sample, `sample_bits`: its bits place and mirror a window, of an image or of a whole
batch; everything else draws from torch's global generator, seeded with it around each image.

Resizing is antialiased, as at evaluation; the paper's code resizes its inception crops without.

Shapes: b batch, c channels, h w pixels.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit.data.photo import Box, Photo
from vit.errors import NOT_NEGATIVE, SHARE, UserError, check_range
from vit.preprocessing import (
    Interpolation,
    Size,
    check_choice,
    resize,
    resize_to_cover,
    size_of,
    to_tensor,
)
from vit.seeds import seeded
from vit.tables import resolve, rows

Crop = Literal["inception", "pad", "simple", "resize_random", "none"]
Mean = tuple[float, ...]
"""A number per channel."""
Bits = TypeVar("Bits", int, np.ndarray)
"""64 random bits, or uint64 `b`."""

CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of an inception crop, drawn uniformly in its logarithm."""


class Change(Protocol):
    """A row of the table of changes, made of the TrainTransform that sets the field of its name."""

    def check(self, image_size: Size, channels: int | None) -> None:
        """UserError for images that it cannot change, or changes that a run cannot repeat."""

    def __call__(self, pixels: Tensor, bits: int, mean: Mean, std: Mean) -> Tensor:
        """`c h w` -> the same type and size; `bits` are 64 random ones. It may write to `pixels`.
        `mean` and `std` are those of the normalisation that follows.
        """
        ...


class Policy(ABC):
    """A random change of an RGB image of 8 bits."""

    @abstractmethod
    def __call__(self, image: Image.Image, mean: Mean, resample: Image.Resampling) -> Image.Image:
        """An RGB image of the same size, by draws from torch's global generator alone. `mean` is
        that of the normalisation that follows, `resample` the filter of the crop."""


@dataclass(frozen=True, kw_only=True)
class TrainTransform:
    """Random changes of a training image.

    The defaults are the ViT paper's: inception crop and flip (vit_jax/input_pipeline.py).
    """

    crop: Crop = "inception"
    """How image_size is cut out. inception: a random box of crop_area and aspect 3/4 to 4/3,
    resized (photos). pad: resized to cover image_size, padded with crop_padding black pixels,
    random window (small images such as CIFAR). simple: the same with a reflected border, DeiT
    III's simple random crop. resize_random: resized to resize_size, random window (fine-tuning
    in BiT and big_vision). none: resized to cover image_size, centre window."""

    crop_area: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest share of the image's area in an inception crop."""

    crop_padding: int = 4
    """Pixels added on each side by the crops pad and simple."""

    resize_size: int | None = None
    """Pixels of the shorter side from which the crop resize_random is cut, such as 448 for an
    image_size of 384, 160 for 128, 512 for 480; only that crop uses it, and needs it."""

    resize_squash: bool = False
    """Stretches the image to a square of resize_size, as BiT does, instead of keeping its aspect
    ratio; with the crop none to image_size."""

    flip: bool = True
    """Mirror left and right with probability 1/2. Switch it off where sides matter (digits)."""

    policy: Policy | None = None
    """A published policy by its class: vit.RandAugment."""

    three_augment: bool = False
    """DeiT III's 3-Augment: each image is made gray, solarized or blurred, with equal chance."""

    color_jitter: float = 0.0
    """Largest relative change of brightness, contrast and saturation; DeiT III uses 0.3."""

    extra: Callable[[Image.Image], Any] | None = None
    """A change of your own before erasing, a function or a class by its import path, such as
    torchvision.transforms.v2.AugMix: called with an RGB PIL image of image_size, it returns a PIL
    image, or a uint8 tensor or array `c h w`, of the same size. For each image the global
    generators of torch, NumPy and Python are seeded."""

    erasing: float = 0.0
    """Probability that a box of 2 to 33 percent of the image is filled with noise; DeiT uses
    0.25."""

    interpolation: Interpolation = "bilinear"
    """Filter of the resize: bilinear, or bicubic (DeiT)."""

    def __post_init__(self) -> None:
        check_choice("crop", self.crop, get_args(Crop))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        low, high = self.crop_area
        if not 0 < low <= high <= 1:
            raise UserError(f"crop_area={self.crop_area} must be 0 < smallest <= largest <= 1")
        check_range("crop_padding", self.crop_padding, NOT_NEGATIVE)
        check_range("color_jitter", self.color_jitter, NOT_NEGATIVE)
        check_range("erasing", self.erasing, SHARE)
        if (self.crop == "resize_random") != (self.resize_size is not None):
            rule = "crop='resize_random' needs it, such as 448 for 384, and no other crop takes it"
            raise UserError(f"resize_size={self.resize_size}: {rule}")
        if self.resize_squash and self.crop not in ("resize_random", "none"):
            raise UserError(f"resize_squash belongs to crop='resize_random', not to {self.crop!r}")

    def check(self, image_size: Size, channels: int | None) -> None:
        """Raises UserError if windows of `image_size` (height, width) cannot be cut or changed."""
        if self.resize_size is not None and max(image_size) > self.resize_size:
            raise UserError(f"resize_size={self.resize_size} is smaller than {image_size=}")
        if self.crop == "simple" and self.crop_padding >= min(image_size):
            padding = f"crop_padding={self.crop_padding}"
            raise UserError(f"{padding} must be smaller than {image_size=}, which is reflected")
        for change in self._changes:
            change.check(image_size, channels)

    def __call__(
        self,
        image: Image.Image | Photo | Tensor,
        bits: Any,
        image_size: Size,
        *,
        mean: Mean = (0.5, 0.5, 0.5),
        std: Mean = (0.5, 0.5, 0.5),
    ) -> Tensor:
        """RGB image -> uint8 `c h w` of `image_size` (height, width); float32 `c h w` -> the same.

        A photo is decoded as far as its crop needs it. If `takes_batches`, also a batch `b c h w`
        of images that `fit` leaves as they are.

        Args:
            image: The image, or the batch.
            bits: `sample_bits` of the sample; uint64 `b` for a batch.
            image_size: Height and width in pixels.
            mean: Of the normalisation that follows; changes may fill with it.
            std: Of the same.
        """
        if isinstance(image, Tensor) and image.ndim == 4:
            return self._windows(image, bits.tolist(), image_size)
        with seeded(bits):
            pixels = self._cropped(image, bits, image_size)
            for change in self._changes:
                pixels = change(pixels, _mixed(bits), mean, std)
        return pixels

    @cached_property
    def _changes(self) -> list[Change]:
        """Changes of the fields that are set, of those that the table names."""
        fields = [(row, getattr(self, name)) for name, row in rows("changes").items()]
        return [resolve(row)(self) for row, value in fields if value]

    @property
    def takes_batches(self) -> bool:
        """True if a window and its mirroring are the only changes."""
        return self.crop != "inception" and not self._changes

    def fit(self, image: Image.Image | Photo | Tensor, image_size: Size) -> Tensor:
        """The resize before the window, to `c h w`; a tensor of that size is returned itself."""
        size = image_size
        if self.crop == "resize_random":
            assert self.resize_size is not None
            size = self.resize_size, self.resize_size
        if isinstance(image, Photo):
            image = image.image() if self.resize_squash else image.cover(size, self.interpolation)
        fit = resize if self.resize_squash else resize_to_cover
        if isinstance(image, Tensor):
            return fit(image, size, self.interpolation)
        return to_tensor(fit(image, size, self.interpolation))

    def _cropped(self, image: Image.Image | Photo | Tensor, bits: int, size: Size) -> Tensor:
        """The crop, mirrored or not."""
        if self.crop != "inception":
            return self._windows(self.fit(image, size)[None], [bits], size)[0]
        if isinstance(image, Tensor):
            top, left, height, width = inception_box(*size_of(image), self.crop_area)
            part = image[:, top : top + height, left : left + width].clone()
            pixels = resize(part, size, self.interpolation)
        else:
            photo = image if isinstance(image, Photo) else Photo(image)
            box = inception_box(photo.height, photo.width, self.crop_area)
            pixels = photo.crop(box, size, self.interpolation)
        return pixels.flip(-1) if self.flip and bits & 1 else pixels.contiguous()

    def _windows(self, images: Tensor, bits: list[int], size: Size) -> Tensor:
        """A window of each image of `b c h w`, mirrored or not."""
        if self.crop in ("pad", "simple") and self.crop_padding:
            kind = "constant" if self.crop == "pad" else "reflect"
            images = F.pad(images, (self.crop_padding,) * 4, mode=kind)
        windows = torch.empty(*images.shape[:2], *size, dtype=images.dtype)
        source, target = images.numpy(), windows.numpy()
        mirrored = target[..., ::-1]
        rows, columns = images.shape[2] - size[0], images.shape[3] - size[1]
        top, left = round(rows / 2), round(columns / 2)
        # One slice per image in NumPy is faster than a gather over the batch.
        for i, number in enumerate(bits):
            if self.crop != "none":
                # 32 bits become a row, 31 a column; the last one is the coin.
                top = (number >> 32) * (rows + 1) >> 32
                left = (number >> 1 & 2**31 - 1) * (columns + 1) >> 31
            part = source[i, :, top : top + size[0], left : left + size[1]]
            (mirrored if self.flip and number & 1 else target)[i] = part
        return windows


def sample_bits(seed: int, epoch: Bits, index: Bits, copy: Bits) -> Bits:
    """64 well mixed bits for the draws of a training sample, the same on every machine.

    SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) over the run's seed, the epoch, and
    the image's index with the number of its copy in the epoch. Integers, or uint64 arrays.
    """
    return _mixed(_mixed(_mixed(seed % 2**64) ^ epoch) ^ (index | copy << 40))


def _mixed(bits: Bits) -> Bits:
    low = 2**64 - 1
    bits = (bits + 0x9E3779B97F4A7C15) & low
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & low
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & low
    return bits ^ (bits >> 31)


def inception_box(height: int, width: int, area: tuple[float, float]) -> Box:
    """Top, left, height and width of a random crop (GoogLeNet, arXiv:1409.4842, section 6).

    The draws of torchvision's RandomResizedCrop: after ten misses, the largest centred box of an
    allowed aspect.
    """
    box = random_box(height, width, area, CROP_ASPECT)
    if box is not None:
        return box
    narrowest, widest = CROP_ASPECT
    box_height = min(height, round(width / narrowest))
    box_width = min(width, round(height * widest))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def random_box(
    height: int,
    width: int,
    area: tuple[float, float],
    aspect: tuple[float, float],
    margin: int = 0,
) -> Box | None:
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
