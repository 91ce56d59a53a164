"""The training transform: RGB image -> randomly cropped, changed uint8 `c h w`.

The order is that of big_vision and DeiT: crop, flip, 3-Augment or a policy such as RandAugment,
colour jitter, a change of the user's own, erasing. All draws come from one number per sample,
`sample_bits`: its bits place and mirror a window, of an image or of a whole batch; everything else
draws from torch's global generator, seeded with it around each image. Only color_jitter, which is
torchvision's code, imports that.

Resizing is antialiased, as at evaluation; the paper's code resizes its inception crops without.

Shapes: b batch, c channels, h w pixels.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, Protocol, get_args

import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor

from vit.data.photo import Photo
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

CROP_ASPECT = (3 / 4, 4 / 3)
"""Width over height of an inception crop, drawn uniformly in its logarithm."""

ERASED_AREA, ERASED_ASPECT = (0.02, 1 / 3), (0.3, 1 / 0.3)
"""Share of the image that is erased and the box's aspect: the values of DeiT and timm."""


class Change(Protocol):
    """Entry of the table of changes, made of the value of the field that its row names."""

    def check(self, image_size: Size) -> None:
        """UserError for a change that images of that size cannot have, or a run not repeat."""

    def __call__(self, image: Image.Image, bits: int) -> Tensor:
        """RGB image -> uint8 `c h w` of the same size; `bits` are 64 random ones."""
        ...


class Policy(ABC):
    """A random change of an RGB image of 8 bits."""

    @abstractmethod
    def __call__(
        self, image: Image.Image, mean: tuple[float, ...], resample: Image.Resampling
    ) -> Image.Image:
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
        if self.crop == "resize_random":
            if self.resize_size is None or self.resize_size < 1:
                rule = "crop='resize_random' needs resize_size, the pixels of the shorter side"
                raise UserError(f"resize_size={self.resize_size}: {rule}, such as 448 for 384")
        elif self.resize_size is not None:
            raise UserError(f"resize_size belongs to crop='resize_random', not to {self.crop!r}")
        elif self.resize_squash and self.crop != "none":
            raise UserError(f"resize_squash belongs to crop='resize_random', not to {self.crop!r}")

    def check_size(self, image_size: tuple[int, int]) -> None:
        """Raises UserError if windows of `image_size` (height, width) cannot be cut or changed."""
        if self.resize_size is not None and max(image_size) > self.resize_size:
            raise UserError(f"resize_size={self.resize_size} is smaller than {image_size=}")
        if self.crop == "simple" and self.crop_padding >= min(image_size):
            padding = f"crop_padding={self.crop_padding}"
            raise UserError(f"{padding} must be smaller than {image_size=}, which is reflected")
        for change in self._changes:
            change.check(image_size)

    def check_channels(self) -> None:
        """Raises UserError for a change that is defined for RGB images of 8 bits only."""
        for name in ("policy", "three_augment", "color_jitter", "extra"):
            if getattr(self, name):
                raise UserError(f"data.augment.{name} changes RGB images alone, not data.channels")

    def __call__(
        self,
        image: Image.Image | Photo | Tensor,
        bits: Any,
        image_size: Size,
        *,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
    ) -> Tensor:
        """RGB image -> uint8 `c h w` of `image_size` (height, width); float32 `c h w` -> the same.

        A photo is decoded as far as its crop needs it. If `takes_batches`, also a batch `b c h w`
        of images that `fit` leaves as they are.

        Args:
            image: The image, or the batch.
            bits: `sample_bits` of the sample; uint64 `b` for a batch.
            image_size: Height and width in pixels.
            mean: Of the normalisation that follows; erasing and a policy may fill with it.
            std: Of the same; the spread of erasing's noise.
        """
        if isinstance(image, Tensor) and image.ndim == 4:
            return self._windows(image, bits.tolist(), image_size)
        with seeded(bits):
            pixels = self._cropped(image, bits, image_size)
            if self.three_augment or self.policy or self.color_jitter:
                pixels = to_tensor(self._recoloured(to_image(pixels), mean))
            for change in self._changes:
                pixels = change(to_image(pixels), _mixed(bits))
            if self.erasing and torch.rand(1).item() < self.erasing:
                erase(pixels, mean, std)
        return pixels

    @cached_property
    def _changes(self) -> list[Change]:
        """Changes of the fields that are set, of those that the table names."""
        fields = [(row, getattr(self, name)) for name, row in rows("changes").items()]
        return [resolve(row)(value) for row, value in fields if value is not None]

    @property
    def takes_batches(self) -> bool:
        """True if a window and its mirroring are the only changes."""
        more = self.three_augment or self.policy or self.color_jitter or self.erasing
        return self.crop != "inception" and not more and self.extra is None

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

    def _recoloured(self, image: Image.Image, mean: tuple[float, ...]) -> Image.Image:
        if self.three_augment:
            image = _three_augment(image)
        if self.policy is not None:
            image = self.policy(image, mean, Image.Resampling[self.interpolation.upper()])
        return _color_jitter(self.color_jitter)(image) if self.color_jitter else image


def sample_bits(seed: int, epoch: Any, index: Any, copy: Any) -> Any:
    """64 well mixed bits for the draws of a training sample, the same on every machine.

    SplitMix64's finalizer (Steele, Lea and Flood, OOPSLA 2014) over the run's seed, the epoch, and
    the image's index with the number of its copy in the epoch. Integers, or uint64 arrays.
    """
    return _mixed(_mixed(_mixed(seed % 2**64) ^ epoch) ^ (index | copy << 40))


def _mixed(bits: Any) -> Any:
    low = 2**64 - 1
    bits = (bits + 0x9E3779B97F4A7C15) & low
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & low
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & low
    return bits ^ (bits >> 31)


def inception_box(height: int, width: int, area: tuple[float, float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop (GoogLeNet, arXiv:1409.4842, section 6).

    The draws of torchvision's RandomResizedCrop: after ten misses, the largest centred box of an
    allowed aspect.
    """
    box = _random_box(height, width, area, CROP_ASPECT)
    if box is not None:
        return box
    narrowest, widest = CROP_ASPECT
    box_height = min(height, round(width / narrowest))
    box_width = min(width, round(height * widest))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def to_image(pixels: Tensor) -> Image.Image:
    """uint8 `c h w` -> RGB image; the inverse of `to_tensor`."""
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def _three_augment(image: Image.Image) -> Image.Image:
    """Gray, solarized or blurred with equal chance (DeiT III, arXiv:2204.07118; augment.py)."""
    choice = _randint(2)
    if choice == 0:
        return image.convert("L").convert("RGB")
    if choice == 1:
        return ImageOps.solarize(image)
    return image.filter(ImageFilter.GaussianBlur(_uniform(0.1, 2.0)))


def erase(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Fill a random box of uint8 or float32 `c h w` with noise, in place.

    DeiT's random erasing (arXiv:1708.04896, mode 'pixel'): each value is standard normal once
    normalised. Unlike there, uint8 noise is clipped to black and white: 3 % of it with ImageNet's
    mean and std, 32 % with 0.5 and 0.5.
    """
    channels, height, width = pixels.shape
    box = _random_box(height, width, ERASED_AREA, ERASED_ASPECT, margin=1)
    if box is None:
        return
    top, left, box_height, box_width = box
    white = 1 if pixels.is_floating_point() else 255
    scale, shift = (torch.tensor(v).view(-1, 1, 1) * white for v in (std, mean))
    noise = torch.randn(channels, box_height, box_width) * scale + shift
    if white == 255:
        noise = noise.round_().clamp_(0, 255)
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


# It holds nothing but its settings, so one serves every image.
@cache
def _color_jitter(strength: float) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import ColorJitter

    return ColorJitter(strength, strength, strength)
