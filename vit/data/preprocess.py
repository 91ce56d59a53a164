"""Step 2 at evaluation: RGB image -> uint8 `c h w`; and, for both, uint8 -> normalised floats.

Images with other channels are float32 `c h w` (vit/data/raster.py) from the file to the model.

Shapes: b batch, c channels, h w pixels. A trained model carries its `Preprocess` with it as JSON.
Only torch and Pillow are needed; numpy and torchvision are not.
"""

import contextlib
import math
import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from PIL import Image
from torch import Tensor

from vit.data.decode import open_image
from vit.errors import UserError, did_you_mean

Interpolation = Literal["bilinear", "bicubic"]
"""Pillow's filters, antialiased."""

MAX_ASPECT = 100
"""Aspect ratio beyond which only the middle of an image is used: a
strip of 1 x 20,000 pixels, its shorter side resized to 256, would fill five gigabytes."""


CROP_FRACTION = 0.875
"""Side of the centre crop over the resized side, where neither recipe nor weights say it."""

_CACHED_VALUES = 2**20
_MAPPED_BYTES = 2**25
"""The C library gives back larger blocks at once, and each new one is a page fault per 4 KiB: a
third of a millisecond for every image of 224 pixels, four times what normalising it takes."""


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """What happens to an image before the model sees it, at evaluation and in use.

    `resize="crop"` on a square is torchvision's Resize(int) and CenterCrop, to the bit; on other
    shapes the image is resized until it covers them. `resize="squash"` is the evaluation of the
    ViT paper's code (vit_jax/input_pipeline.py), which does not keep the aspect ratio.
    """

    image_size: tuple[int, int]
    """Height and width that the model sees, in pixels."""

    resize: Literal["crop", "squash"] = "crop"
    """crop keeps the aspect ratio and cuts off what sticks out; squash stretches the image."""

    crop_fraction: float = CROP_FRACTION
    """Side of the centre crop over the resized side, in (0, 1]: the image is first resized to
    round(image_size / crop_fraction). 0.875 is ImageNet's 256 to 224; 1 loses the least."""

    interpolation: Interpolation = "bilinear"
    """Filter of the resize: bilinear or bicubic."""

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Subtracted from red, green and blue in [0, 1]. 0.5 with std 0.5 maps to [-1, 1] as in the
    paper's code."""

    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    """Divides red, green and blue after the mean is subtracted."""

    channels: int | None = None
    """Channels of the images, whose values are then taken as the file has them
    (vit/data/raster.py); mean and std have as many numbers. None: every image becomes RGB of 8
    bits."""

    def __post_init__(self) -> None:
        check_choice("resize", self.resize, ("crop", "squash"))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        if not _numbers(self.image_size, 2, int) or min(self.image_size) < 1:
            raise UserError(f"image_size={self.image_size!r} must be (height, width) in pixels")
        if not _numbers((self.crop_fraction,), 1, float) or not 0 < self.crop_fraction <= 1:
            raise UserError(f"crop_fraction={self.crop_fraction!r} must be in (0, 1]")
        self._check_channels()

    def _check_channels(self) -> None:
        count = self.channels
        if count is not None and (not _numbers((count,), 1, int) or not 1 <= count <= 16):
            raise UserError(f"channels={count!r} must be a whole number from 1 to 16")
        wanted = "three numbers: red, green and blue"
        above = "three numbers above 0"
        if count is not None:
            wanted, above = f"{count} numbers, one per channel", f"{count} numbers above 0"
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not _numbers(values, count or 3, float):
                raise UserError(f"{name}={values!r} must be {wanted}")
        if min(self.std) <= 0:
            raise UserError(f"std={self.std!r} must be {above}")

    def open(self, source: Any) -> Any:
        """An image as `__call__` takes it: RGB, or float32 `c h w` where `channels` are given.

        `source` is a path, a file's bytes, a PIL image or an array. Raises ImageError.
        """
        if self.channels is None:
            return open_image(source)
        from vit.data.raster import open_raster

        return open_raster(source, self.channels)

    def __call__(self, image: Image.Image | Tensor) -> Tensor:
        """RGB image (`vit.data.decode.open_image`) -> uint8 `c h w`; float32 `c h w` -> the same.

        `open` gives either.
        """
        if isinstance(image, Tensor):
            return self._raster(image)
        height, width = (round(side / self.crop_fraction) for side in self.image_size)
        if self.resize == "squash":
            image = image.resize((width, height), pillow_filter(self.interpolation))
        else:
            image = resize_to_cover(image, (height, width), self.interpolation)
        return to_tensor(center_crop(image, self.image_size))

    def _raster(self, image: Tensor) -> Tensor:
        from vit.data.raster import resized

        size = tuple(round(side / self.crop_fraction) for side in self.image_size)
        if self.resize == "squash":
            return center_window(
                resized(image, (size[0], size[1]), self.interpolation), self.image_size
            )
        return center_window(cover(image, (size[0], size[1]), self.interpolation), self.image_size)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 `b c h w` -> float32 `b c h w` on the same device, contiguous.

        Images with `channels` of their own are float32 already.

        The only place where pixels are normalised. The steps and their order are torchvision's
        ToTensor and Normalize, so the result equals theirs to the bit.
        """
        count, kind = self.channels or 3, torch.uint8 if self.channels is None else torch.float32
        if images.dtype != kind or images.ndim != 4 or images.shape[1] != count:
            received = f"{images.dtype} of shape {tuple(images.shape)}"
            wanted = f"{str(kind).removeprefix('torch.')} images of shape (b, {count}, h, w)"
            raise ValueError(f"normalize takes {wanted}, not {received}")
        mean = _per_channel(self.mean, images.device)
        std = _per_channel(self.std, images.device)
        if self.channels is not None:
            return images.sub(mean).div_(std)
        floats = _empty_floats(images)
        step = max(1, len(images))
        if images.device.type == "cpu":  # some at a time: the four steps meet them in its cache
            step = max(1, _CACHED_VALUES // max(1, images[:1].numel()))
        for part, pixels in zip(floats.split(step), images.split(step), strict=True):
            part.copy_(pixels).div_(255).sub_(mean).div_(std)
        return floats

    def picture(self, normalized: Tensor) -> Image.Image:
        """An RGB image to look at of float32 `c h w` from `normalize`, on the CPU."""
        mean, std = (_per_channel(v, normalized.device) for v in (self.mean, self.std))
        values = normalized * std + mean
        if self.channels is not None:
            from vit.data.raster import picture

            return picture(values)
        pixels = (values * 255).round().clamp(0, 255).to(torch.uint8)
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values, for the model's config.json."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name != "channels" or value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Preprocess":
        """The inverse of `to_dict`. Raises UserError for a missing, unknown or impossible value."""
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                hint = did_you_mean(name, known) or f"; the known ones are {', '.join(known)}"
                raise UserError(f"preprocessing has no field {name!r}{hint}")
        if "image_size" not in values:
            raise UserError("preprocessing has no image_size; give [height, width] in pixels")
        decoded: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**decoded)


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    """What the model is fed: how evaluation images are cut, and how all are normalised.

    What is not given is that of the pretrained weights, or else the default named.
    """

    resize: Literal["crop", "squash"] | None = None
    """crop (default) keeps the aspect ratio and cuts off what sticks out; squash stretches."""

    crop_fraction: float | None = None
    """Side of the centre crop over the resized side, in (0, 1]; 0.875 (default) is 256 to 224."""

    interpolation: Interpolation | None = None
    """Filter of the resize at evaluation: bilinear (default) or bicubic."""

    mean: tuple[float, ...] | None = None
    """Subtracted from red, green and blue in [0, 1]; 0.5 by default. One number per channel where
    data.channels is given; the default is then that of the training images."""

    std: tuple[float, ...] | None = None
    """Divides red, green and blue after that; 0.5 by default, or that of the training images."""

    def known(self, image_size: tuple[int, int], channels: int | None) -> Preprocess | None:
        """The complete preprocessing; None with `channels`, whose mean and std depend on train.

        Raises UserError for a value that cannot be.
        """
        if channels is None:
            return self.preprocess(image_size)
        replace(self, mean=None, std=None).preprocess(image_size, channels)
        return None

    def preprocess(self, image_size: tuple[int, int], channels: int | None = None) -> Preprocess:
        """The complete preprocessing for (height, width), and for `channels` that are not RGB."""
        half = (0.5,) * (channels or 3)
        fraction = self.crop_fraction
        return Preprocess(
            image_size=image_size,
            resize=self.resize or "crop",
            crop_fraction=CROP_FRACTION if fraction is None else fraction,
            interpolation=self.interpolation or "bilinear",
            mean=self.mean or half,
            std=self.std or half,
            channels=channels,
        )


def channels_of(config: Any) -> int | None:
    """Channels of the images of a model by its configuration; None for RGB."""
    return None if config.in_channels == 3 else config.in_channels


def resize_to_cover(
    image: Image.Image, size: tuple[int, int], interpolation: Interpolation
) -> Image.Image:
    """Resize to the smallest image of the same aspect ratio that covers `size` (height, width).

    For a square `size` this is torchvision's Resize(int), with the same rounding of the longer
    side. See `MAX_ASPECT` for strips.
    """
    width, height = image.size
    if is_strip(height, width):
        limit = MAX_ASPECT * min(width, height)
        width, height = min(width, limit), min(height, limit)
        image = center_crop(image, (height, width))
    height, width = cover_size(height, width, size)
    if (width, height) == image.size:
        return image
    return image.resize((width, height), pillow_filter(interpolation))


def cover(raster: Tensor, size: tuple[int, int], interpolation: Interpolation) -> Tensor:
    """`resize_to_cover` of float32 `c h w`."""
    from vit.data.raster import resized

    height, width = raster.shape[1:]
    if is_strip(height, width):
        limit = MAX_ASPECT * min(width, height)
        raster = center_window(raster, (min(height, limit), min(width, limit)))
        height, width = raster.shape[1:]
    return resized(raster, cover_size(height, width, size), interpolation)


def center_window(raster: Tensor, size: tuple[int, int]) -> Tensor:
    """`center_crop` of float32 `c h w`; zeros take the place of black."""
    from vit.data.raster import window

    height, width = raster.shape[1:]
    return window(raster, _offset(height, size[0]), _offset(width, size[1]), size)


def cover_size(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """Height and width to which `resize_to_cover` resizes an image that is no strip."""
    if width * size[0] <= height * size[1]:
        return int(size[1] * height / width), size[1]
    return size[0], int(size[0] * width / height)


def is_strip(height: int, width: int) -> bool:
    """Whether only the middle of an image is used, by `MAX_ASPECT`."""
    return max(height, width) > MAX_ASPECT * min(height, width)


def center_crop(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Cut `size` (height, width) from the middle; where the image is smaller, add black around it.

    torchvision's CenterCrop, with its rounding: half a pixel goes to the even offset when it
    cuts, and to the right and bottom when it pads.
    """
    top, left = _offset(image.height, size[0]), _offset(image.width, size[1])
    box = (left, top, left + size[1], top + size[0])
    return image if box == (0, 0, *image.size) else image.crop(box)  # black outside the image


def to_tensor(image: Image.Image) -> Tensor:
    """RGB image -> uint8 `c h w`, in memory of its own."""
    return interleaved(image).permute(2, 0, 1).contiguous()


def interleaved(image: Image.Image) -> Tensor:
    """RGB image -> uint8 `h w c`, in memory of its own."""
    if image.mode != "RGB":
        raise ValueError(f"image of mode {image.mode}: open it with vit.data.decode.open_image")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)  # writable: no warning
    return pixels.view(image.height, image.width, 3)


def pillow_filter(interpolation: Interpolation) -> Image.Resampling:
    """Pillow's constant for the name of a filter."""
    return Image.Resampling[interpolation.upper()]


def check_choice(field: str, value: str, known: tuple[str, ...]) -> None:
    """Raise UserError unless `value` of the named field is one of the known ones."""
    if value not in known:
        hint = did_you_mean(str(value), known) or f"; choose {' | '.join(known)}"
        raise UserError(f"{field}={value!r} is unknown{hint}")


def _offset(side: int, crop: int) -> int:
    return round((side - crop) / 2) if side >= crop else -((crop - side) // 2)


def _numbers(values: Any, count: int, kind: type) -> bool:
    kinds = (int, float) if kind is float else (kind,)
    return (
        isinstance(values, tuple)
        and len(values) == count
        and all(isinstance(value, kinds) and not isinstance(value, bool) for value in values)
        and all(math.isfinite(value) for value in values)
    )


def _empty_floats(images: Tensor) -> Tensor:
    """Memory for as many float32 on the same device; in huge pages where that is worth it."""
    size = 4 * images.numel()
    if images.device.type != "cpu" or size <= _MAPPED_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(images.shape, dtype=torch.float32, device=images.device)
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        block.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(block, dtype=torch.float32).view(images.shape)


def _per_channel(values: tuple[float, ...], device: torch.device) -> Tensor:
    # Filled in place: a copy from the host would make it wait for the device at every batch.
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])  # c 1 1
