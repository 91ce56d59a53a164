"""RandAugment (arXiv:1909.13719) in the three versions that published recipes were trained with.

They share a name and little else: the scale of the magnitude, the operations, how often one is
applied, the filter and the fill differ. Every draw comes from torch's global generator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import torch
from PIL import Image, ImageEnhance, ImageOps

from vit.data.transforms import Policy
from vit.errors import UserError
from vit.preprocessing import check_choice

Variant = Literal["torchvision", "tf", "timm"]

MAX_MAGNITUDE: dict[Variant, int] = {"torchvision": 30, "tf": 30, "timm": 10}
"""The strongest setting of each version. The scale of tf is 10, which its recipes exceed (15, 20);
timm draws the magnitude from a normal distribution and clips it here."""

APPLIED, MAGNITUDE_STD = 0.5, 0.5
"""timm: probability that an operation drawn is applied, and the spread of its magnitude."""

GRAY = (128, 128, 128)


@dataclass(frozen=True)
class Surroundings:
    """Fill of what comes from outside, and filter between pixels, of operations that move them."""

    fill: tuple[int, ...]
    resample: Image.Resampling


@dataclass(frozen=True)
class Operation:
    """Change of an image."""

    apply: Callable[[Image.Image, float, Surroundings], Image.Image]
    """RGB image, argument -> RGB image of the same size."""

    strongest: float = 1.0
    """The argument at magnitude 10; it is proportional to the magnitude."""

    signed: bool = False
    """The argument is negated with probability 1/2."""

    def __call__(self, image: Image.Image, level: float, around: Surroundings) -> Image.Image:
        """`level` is the magnitude over 10."""
        argument = self.strongest * level
        return self.apply(image, _either_sign(argument) if self.signed else argument, around)


@dataclass(frozen=True, kw_only=True)
class RandAugment(Policy):
    """Random operations on each image, drawn with replacement."""

    operations: int = 2
    """How many."""

    magnitude: int = 9
    """Their strength, on the scale of the variant."""

    variant: Variant = "torchvision"
    """Whose RandAugment. torchvision: 14 operations, magnitude 0 to 30. tf (AugReg, big_vision):
    16 operations, and 10 is the end of the scale, which 15 and 20 exceed on purpose; 10 rotates by
    30 degrees, three times as far as in torchvision. timm (DeiT's rand-m9-mstd0.5-inc1): 15
    operations with probability 1/2 each, magnitude 0 to 10 with noise, fill and filter those of
    mean and interpolation."""

    def __post_init__(self) -> None:
        check_choice("variant", self.variant, get_args(Variant))
        most = MAX_MAGNITUDE[self.variant]
        if self.operations < 1 or not 0 <= self.magnitude <= most:
            rule = f"1 operation or more and a magnitude from 0 to {most} ({self.variant})"
            raise UserError(
                f"operations={self.operations}, magnitude={self.magnitude}: give {rule}"
            )

    def __call__(
        self, image: Image.Image, mean: tuple[float, ...], resample: Image.Resampling
    ) -> Image.Image:
        """The changed image.

        - torchvision: its RandAugment, with bilinear filter and gray fill.
        - tf: the version of AugReg and of the better plain ViT (big_vision,
          pp/archive/autoaugment.py). 16 operations, always applied, at one magnitude: the code also
          draws a probability for each, and drops it. Nearest neighbours, gray fill. Contrast,
          colour and sharpness are Pillow's, which rounds differently: by at most 2 of 255.
        - timm: the version of DeiT, 'rand-m{magnitude}-n{operations}-mstd0.5-inc1'. 15 operations,
          each applied with probability 1/2, at a magnitude of its own, drawn around `magnitude`
          with standard deviation 0.5 and clipped to [0, 10]. It fills with `mean` (of images in
          [0, 1]), by the filter `resample`.
        """
        if self.variant == "torchvision":
            return _torchvision(self.operations, self.magnitude)(image)
        timm = self.variant == "timm"
        table, around = TF_OPERATIONS, Surroundings(GRAY, Image.Resampling.NEAREST)
        if timm:
            fill = tuple(min(255, round(255 * value)) for value in mean)
            table, around = TIMM_OPERATIONS, Surroundings(fill, resample)
        drawn = torch.randint(len(table), (self.operations,)).tolist()
        for operation in (list(table.values())[index] for index in drawn):
            level: float = self.magnitude
            if timm:
                if torch.rand(1).item() > APPLIED:
                    continue
                noisy = level + MAGNITUDE_STD * torch.randn(1).item()
                level = min(max(noisy, 0), MAX_MAGNITUDE["timm"])
            image = operation(image, level / 10, around)
        return image


def _either_sign(value: float) -> float:
    return -value if torch.rand(1).item() < 0.5 else value


def _affine(
    matrix: Callable[[float, Image.Image], tuple[float, ...]], strongest: float
) -> Operation:
    """Moves pixels by the `matrix` of an argument and the image, from target to source."""

    def apply(image: Image.Image, argument: float, around: Surroundings) -> Image.Image:
        coefficients, affine = matrix(argument, image), Image.Transform.AFFINE
        return image.transform(
            image.size, affine, coefficients, resample=around.resample, fillcolor=around.fill
        )

    return Operation(apply, strongest, signed=True)


def _tf_posterize(image: Image.Image, bits: float, _: Surroundings) -> Image.Image:
    # TensorFlow shifts by 7 bits where 8 are asked for: the first bit stays at magnitude 0.
    return _clear_bits(image, min(max(8 - int(bits), 0), 7))


def _timm_posterize(image: Image.Image, lost: float, _: Surroundings) -> Image.Image:
    # Black at magnitude 10, as it was when DeiT was trained; Pillow 12's posterize refuses that.
    return _clear_bits(image, 4 + int(lost))


def _clear_bits(image: Image.Image, count: int) -> Image.Image:
    return image.point([value >> count << count for value in range(256)] * 3)


def _solarize_add(image: Image.Image, addition: float, _: Surroundings) -> Image.Image:
    lighter = [min(255, value + int(addition)) for value in range(128)]
    return image.point([*lighter, *range(128, 256)] * 3)


def _tf_cutout(image: Image.Image, pixels: float, around: Surroundings) -> Image.Image:
    y = int(torch.randint(image.height, (1,)).item())
    x = int(torch.randint(image.width, (1,)).item())
    half = int(pixels)
    image = image.copy()
    image.paste(around.fill, (max(0, x - half), max(0, y - half), x + half, y + half))
    return image


_FIXED: dict[str, Operation] = {
    "AutoContrast": Operation(lambda image, *_: ImageOps.autocontrast(image)),
    "Equalize": Operation(lambda image, *_: ImageOps.equalize(image)),
    "Invert": Operation(lambda image, *_: ImageOps.invert(image)),
}
_ROTATE = Operation(
    lambda image, degrees, around: image.rotate(degrees, around.resample, fillcolor=around.fill),
    30,
    signed=True,
)


def _tf_enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return Operation(lambda image, level, _: kind(image).enhance(1.8 * level + 0.1))


TF_OPERATIONS: dict[str, Operation] = {
    **_FIXED,
    "Rotate": _ROTATE,
    "Posterize": Operation(_tf_posterize, 4),
    # TensorFlow compares bytes, and 256 becomes the byte 0, 384 the byte 128.
    "Solarize": Operation(lambda image, at, _: ImageOps.solarize(image, int(at) % 256), 256),
    "Color": _tf_enhance(ImageEnhance.Color),
    "Contrast": _tf_enhance(ImageEnhance.Contrast),
    "Brightness": _tf_enhance(ImageEnhance.Brightness),
    "Sharpness": _tf_enhance(ImageEnhance.Sharpness),
    # Pillow looks for the source of a pixel's centre, half a pixel from its corner; TensorFlow for
    # that of the corner: a shear is moved by half of it. The 1/1024 sends sources halfway between
    # two pixels to the one that TensorFlow's rounding takes.
    "ShearX": _affine(lambda shear, _: (1, shear, 1 / 1024 - shear / 2, 0, 1, 0), 0.3),
    "ShearY": _affine(lambda shear, _: (1, 0, 0, shear, 1, 1 / 1024 - shear / 2), 0.3),
    # In pixels, for images of any size: the code is made for 224.
    "TranslateX": _affine(lambda pixels, _: (1, 0, pixels, 0, 1, 0), 100),
    "TranslateY": _affine(lambda pixels, _: (1, 0, 0, 0, 1, pixels), 100),
    "Cutout": Operation(_tf_cutout, 40),  # half a side
    "SolarizeAdd": Operation(_solarize_add, 110),
}
"""Posterize keeps more bits at a higher magnitude, all of them at 20. Solarize
is what TensorFlow runs, not what the code says: its threshold falls from 256 to 0 at 10 and 20,
which inverts the image, and is the usual 128 at 15."""


def _timm_enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    """The argument is the distance to the factor 1, which changes nothing."""
    return Operation(
        lambda image, change, _: kind(image).enhance(max(0.1, 1 + change)), 0.9, signed=True
    )


TIMM_OPERATIONS: dict[str, Operation] = {
    **_FIXED,
    "Rotate": _ROTATE,
    "PosterizeIncreasing": Operation(_timm_posterize, 4),
    "SolarizeIncreasing": Operation(
        lambda image, depth, _: ImageOps.solarize(image, 256 - int(depth)), 256
    ),
    "SolarizeAdd": Operation(_solarize_add, 110),
    "ColorIncreasing": _timm_enhance(ImageEnhance.Color),
    "ContrastIncreasing": _timm_enhance(ImageEnhance.Contrast),
    "BrightnessIncreasing": _timm_enhance(ImageEnhance.Brightness),
    "SharpnessIncreasing": _timm_enhance(ImageEnhance.Sharpness),
    "ShearX": _affine(lambda shear, _: (1, shear, 0, 0, 1, 0), 0.3),
    "ShearY": _affine(lambda shear, _: (1, 0, 0, shear, 1, 0), 0.3),
    # Shares of the image's sides.
    "TranslateXRel": _affine(lambda share, image: (1, 0, share * image.width, 0, 1, 0), 0.45),
    "TranslateYRel": _affine(lambda share, image: (1, 0, 0, 0, 1, share * image.height), 0.45),
}
"""In timm's order; all change more at a higher magnitude."""


# It holds nothing but its settings, so one serves every image.
@cache
def _torchvision(operations: int, magnitude: int) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import InterpolationMode, RandAugment

    bilinear = InterpolationMode.BILINEAR
    bins = MAX_MAGNITUDE["torchvision"] + 1
    return RandAugment(
        operations, magnitude, bins, interpolation=bilinear, fill=[float(v) for v in GRAY]
    )
