"""Resize, centre crop and normalisation of an image: all steps between its file and the model.

An image is an RGB image of Pillow, or a float32 tensor `c h w` if it is not RGB. Shapes: b batch,
c channels, h w pixels.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeVar, get_args

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit.errors import ABOVE_ZERO, FINITE, POSITIVE, Range, UserError, check_range, shorten

Size = tuple[int, int]
"""Height and width in pixels."""
Resize = Literal["crop", "squash", "pad"]
CropRounding = Literal["even", "floor"]
Interpolation = Literal["bilinear", "bicubic"]
"""Pillow's filters, antialiased."""
Picture = TypeVar("Picture", Image.Image, Tensor)

HALF = (0.5, 0.5, 0.5)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WHOLE = Range("a whole number above 0", lambda value: isinstance(value, int) and value > 0)
CHANNELS = Range("in [1, 16]", lambda count: 1 <= count <= 16)
MAX_ASPECT = 100
"""Only the middle of a longer strip is used: 1 x 20,000 pixels resized to 256 would take 5 GB."""


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """The preprocessing of a model at evaluation and in use, as in config.json.

    `resize="crop"` on a square is torchvision's Resize(int) and CenterCrop, to the bit; on other
    shapes the image is resized until it covers them. `resize="squash"` is the evaluation of the
    ViT paper's code (vit_jax/input_pipeline.py). `resize="pad"` is timm's crop_mode "border".
    """

    image_size: Size
    """Height and width that the model sees, in pixels."""
    resize: Resize = "crop"
    """crop keeps the aspect ratio and cuts off the edges; squash stretches the image; pad shows the
    whole image between borders of the mean colour (crop_fraction is then 1)."""
    crop_fraction: float = 0.875
    """Side of the centre crop over the resized side, in (0, 1]: the image is first resized to
    round(image_size / crop_fraction). 0.875 is ImageNet's 256 to 224; 1 loses the least."""
    crop_rounding: CropRounding = "even"
    """First row and column of a centre crop whose margin is odd: even rounds half a pixel to the
    even number (torchvision, timm), floor rounds down (transformers)."""
    interpolation: Interpolation = "bilinear"
    """Filter of the resize: bilinear or bicubic."""
    mean: tuple[float, ...] = HALF
    """Subtracted from red, green and blue in [0, 1]. 0.5 with std 0.5 maps to [-1, 1] as in the
    paper's code."""
    std: tuple[float, ...] = HALF
    """Divides red, green and blue after the mean is subtracted."""
    channels: int | None = None
    """Channels of images whose values stay as in the file (vit/data/decode.py); mean and std have
    as many numbers. None: every image becomes RGB of 8 bits."""

    def __post_init__(self) -> None:
        """Raises UserError for a value of a wrong type or out of range."""
        check_choice("resize", self.resize, get_args(Resize))
        check_choice("crop_rounding", self.crop_rounding, get_args(CropRounding))
        check_choice("interpolation", self.interpolation, get_args(Interpolation))
        check_range("crop_fraction", self.crop_fraction, ABOVE_ZERO)
        if self.resize == "pad" and self.crop_fraction != 1:
            raise UserError(f"crop_fraction={self.crop_fraction} must be 1 with resize=pad")
        count = 3 if self.channels is None else self.channels
        check_range("channels", count, CHANNELS)
        _check_numbers("image_size", self.image_size, 2, "height and width", WHOLE)
        _check_numbers("mean", self.mean, count, "one per channel", FINITE)
        _check_numbers("std", self.std, count, "one per channel", POSITIVE)

    @property
    def resized(self) -> Size:
        """Height and width before the centre crop."""
        height, width = (round(side / self.crop_fraction) for side in self.image_size)
        return height, width

    def __call__(self, image: Image.Image | Tensor) -> Tensor:
        """RGB image -> uint8 `c h w`; float32 `c h w` -> the same.

        A batch `b c h w` works too if `fit` leaves its images as they are.
        """
        if isinstance(image, Tensor):
            return center_crop(self.fit(image), self.image_size, self.crop_rounding)
        return to_tensor(center_crop(self.fit(image), self.image_size, self.crop_rounding))

    def fit(self, image: Picture) -> Picture:
        """Resizes before the centre crop; returns the image itself if it has that size."""
        if self.resize == "pad":
            return resize_to_pad(image, self.image_size, self.interpolation, self.mean)
        fit = resize if self.resize == "squash" else resize_to_cover
        return fit(image, self.resized, self.interpolation)

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 `b c h w`, or float32 with `channels` -> float32 on the same device.

        Equal to torchvision's ToTensor and Normalize, to the bit.
        """
        count, kind = self.channels or 3, torch.uint8 if self.channels is None else torch.float32
        if images.dtype != kind or images.ndim != 4 or images.shape[1] != count:
            raise ValueError(
                f"normalize takes {kind} of shape (b, {count}, h, w), not {images.dtype} of shape "
                f"{tuple(images.shape)}"
            )
        mean, std = self._mean_and_std(images.device)
        if self.channels is not None:
            return images.sub(mean).div_(std)
        return images.to(torch.float32).div_(255).sub_(mean).div_(std).contiguous()

    def denormalize(self, images: Tensor) -> Tensor:
        """The inverse of `normalize` for float32 `c h w`; RGB in [0, 1]."""
        mean, std = self._mean_and_std(images.device)
        return images * std + mean

    def _mean_and_std(self, device: torch.device) -> tuple[Tensor, Tensor]:
        # Filled in place: a copy from the host would make it wait for the device at every batch.
        def column(values: tuple[float, ...]) -> Tensor:  # c 1 1; float32 also with bf16-true
            options = {"dtype": torch.float32, "device": device}
            return torch.stack([torch.full((1, 1), value, **options) for value in values])

        return column(self.mean), column(self.std)

    def to_dict(self) -> dict[str, object]:
        """The fields in JSON types, for config.json."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name != "channels" or value is not None
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> "Preprocess":
        """The inverse of `to_dict`. UserError for a missing, unknown or impossible value."""
        try:
            typed: Any = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
            return cls(**typed)
        except (AttributeError, TypeError) as error:
            known = ", ".join(field.name for field in fields(cls))
            raise UserError(
                f"preprocess={shorten(values)}: {error}; it is an object with the fields {known}"
            ) from error

    def changed(self, **changes: object) -> "Preprocess":
        """A copy with other values of some fields; image_size may be one side, and `resize="pad"`
        sets its crop_fraction."""
        if isinstance(side := changes.get("image_size"), int):
            changes["image_size"] = (side, side)
        if changes.get("resize") == "pad":
            changes = {"crop_fraction": 1.0, **changes}
        return Preprocess.from_dict({**self.to_dict(), **changes})


def resize(image: Picture, size: Size, interpolation: Interpolation) -> Picture:
    """The image at `size`, antialiased: Pillow's filters, which torch computes in float32 too."""
    if size_of(image) == size:
        return image
    if isinstance(image, Tensor):
        return F.interpolate(image[None], size, mode=interpolation, antialias=True)[0]
    return image.resize((size[1], size[0]), Image.Resampling[interpolation.upper()])


def resize_to_cover(image: Picture, size: Size, interpolation: Interpolation) -> Picture:
    """Resizes to the smallest image of the same aspect ratio that covers `size`.

    For a square `size` this is torchvision's Resize(int), for others timm's ResizeKeepRatio. See
    `MAX_ASPECT` for strips.
    """
    height, width = size_of(image)
    if is_strip(height, width):
        limit = MAX_ASPECT * min(height, width)
        height, width = min(height, limit), min(width, limit)
        image = center_crop(image, (height, width))
    return resize(image, cover_size(height, width, size), interpolation)


def resize_to_pad(
    image: Picture, size: Size, interpolation: Interpolation, color: tuple[float, ...]
) -> Picture:
    """Resizes to the largest image of the same aspect ratio within `size`; adds borders in `color`.

    As timm's ResizeKeepRatio and CenterCropOrPad. `color`: a number per channel; RGB in [0, 1].
    """
    height, width = size_of(image)
    ratio = max(height / size[0], width / size[1])
    inside = max(round(height / ratio), 1), max(round(width / ratio), 1)
    image = resize(image, inside, interpolation)
    if inside == size:
        return image
    top, left = (size[0] - inside[0]) // 2, (size[1] - inside[1]) // 2
    if isinstance(image, Tensor):
        canvas = torch.tensor(color)[:, None, None].repeat(1, *size)
        canvas[:, top : top + inside[0], left : left + inside[1]] = image
        return canvas
    red, green, blue = (round(255 * value) for value in color)
    framed = Image.new("RGB", (size[1], size[0]), (red, green, blue))
    framed.paste(image, (left, top))
    return framed


def center_crop(image: Picture, size: Size, rounding: CropRounding = "even") -> Picture:
    """Centre crop as in torchvision, or transformers; a smaller image is padded with black."""
    height, width = size_of(image)
    starts = []
    for margin in (height - size[0], width - size[1]):
        even = margin >= 0 and rounding == "even"
        starts.append(round(margin / 2) if even else int(margin / 2))
    top, left = starts
    if size == (height, width):
        return image
    bottom, right = top + size[0], left + size[1]
    if isinstance(image, Tensor):
        return F.pad(image, (-left, right - width, -top, bottom - height)).contiguous()
    return image.crop((left, top, right, bottom))


def size_of(image: Image.Image | Tensor) -> Size:
    """Height and width of an image, or of `c h w` or `b c h w`."""
    if isinstance(image, Tensor):
        return image.shape[-2], image.shape[-1]
    return image.height, image.width


def cover_size(height: int, width: int, size: Size) -> Size:
    """Size of the result of `resize_to_cover`, except for a strip."""
    whole = int if size[0] == size[1] else round
    if width * size[0] <= height * size[1]:
        return whole(size[1] * height / width), size[1]
    return size[0], whole(size[0] * width / height)


def is_strip(height: int, width: int) -> bool:
    """True for an image of which only the middle is used, by `MAX_ASPECT`."""
    return max(height, width) > MAX_ASPECT * min(height, width)


def to_tensor(image: Image.Image) -> Tensor:
    """RGB image -> uint8 `c h w` in new memory."""
    return interleaved(image).permute(2, 0, 1).contiguous()


def interleaved(image: Image.Image) -> Tensor:
    """RGB image -> uint8 `h w c` in new memory."""
    if image.mode != "RGB":
        raise ValueError(f"image of mode {image.mode}: open it with vit.data.decode.open_image")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)  # writable: no warning
    return pixels.view(image.height, image.width, 3)


def picture(raster: Tensor, *, stretch: bool = True) -> Image.Image:
    """An RGB image to display: three channels as red, green and blue, else the first as gray.

    With `stretch` the darkest value becomes black and the brightest white; else 0 and 1 do.
    """
    rgb = raster[:3] if len(raster) >= 3 else raster[:1].expand(3, -1, -1)
    if stretch:
        low, high = rgb.amin(), rgb.amax()
        rgb = (rgb - low) / (high - low).clamp(min=1e-12)
    pixels = rgb.clamp(0, 1) * 255
    return Image.fromarray(pixels.round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy())


def check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises UserError unless the value of a field is one of `choices`."""
    if value not in choices:
        raise UserError(f"{field}={shorten(value)!r} is unknown; choose {' | '.join(choices)}")


def _check_numbers(field: str, values: object, count: int, words: str, allowed: Range) -> None:
    if not isinstance(values, tuple) or len(values) != count:
        raise UserError(f"{field}={shorten(values)} must be {count} numbers, {words}")
    for value in values:
        check_range(field, value, allowed)
