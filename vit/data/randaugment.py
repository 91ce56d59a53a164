"""RandAugment (arXiv:1909.13719) in the three versions that published recipes were trained with.

They share a name and little else: the scale of the magnitude, the operations, how often one is
applied, the filter and the fill differ. Every draw comes from torch's global generator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from PIL import Image, ImageEnhance, ImageOps

Variant = Literal["torchvision", "tf", "timm"]

MAX_MAGNITUDE: dict[Variant, int] = {"torchvision": 30, "tf": 30, "timm": 10}
"""The strongest setting of each version. The scale of tf is 10, which its recipes exceed (15, 20);
timm draws the magnitude from a normal distribution and clips it here."""

CUTOUT_PIXELS, TRANSLATE_PIXELS = 40, 100
"""tf, at magnitude 10: half a side of the box that is cut out, and the largest shift. They do not
depend on the image size: the code is made for 224 pixels."""

TRANSLATE_SHARE = 0.45
"""timm, at magnitude 10: the largest shift, as a share of the image's side."""

APPLIED, MAGNITUDE_STD = 0.5, 0.5
"""timm: probability that an operation drawn is applied, and the spread of its magnitude."""

GRAY = (128, 128, 128)


@dataclass(frozen=True)
class Surroundings:
    """How an operation that moves pixels fills what comes from outside, and between pixels."""

    fill: tuple[int, ...]
    resample: Image.Resampling


@dataclass(frozen=True)
class Operation:
    """One change of an image."""

    apply: Callable[[Image.Image, float, Surroundings], Image.Image]
    """RGB image, argument -> RGB image of the same size."""

    argument: Callable[[float], float] = float
    """Magnitude / 10 -> the argument."""

    signed: bool = False
    """The argument is negated with probability 1/2."""

    def __call__(self, image: Image.Image, level: float, around: Surroundings) -> Image.Image:
        """`level` is the magnitude over 10."""
        argument = self.argument(level)
        return self.apply(image, _either_sign(argument) if self.signed else argument, around)


def randaugment(
    image: Image.Image,
    operations: int,
    magnitude: int,
    variant: Variant,
    *,
    mean: tuple[float, ...],
    resample: Image.Resampling,
) -> Image.Image:
    """`operations` random changes of an RGB image.

    torchvision: its RandAugment, with bilinear filter and gray fill. tf: `randaugment_tf`. timm:
    `randaugment_timm`, the only one that uses `mean` (of images in [0, 1]: the fill) and
    `resample`.
    """
    if variant == "tf":
        return randaugment_tf(image, operations, magnitude)
    if variant == "timm":
        fill = tuple(min(255, round(255 * value)) for value in mean)
        return randaugment_timm(image, operations, magnitude, Surroundings(fill, resample))
    return _torchvision(operations, magnitude)(image)


def randaugment_tf(image: Image.Image, operations: int, magnitude: int) -> Image.Image:
    """The version of AugReg and of the better plain ViT (big_vision/pp/archive/autoaugment.py).

    16 operations, drawn with replacement and always applied at the one magnitude: the code draws
    a probability for each, too, and then drops it. Nearest neighbours, gray fill. Contrast, colour
    and sharpness are Pillow's and differ by rounding: at most 2 of 255.
    """
    drawn = torch.randint(len(TF_OPERATIONS), (operations,)).tolist()
    table = list(TF_OPERATIONS.values())
    around = Surroundings(GRAY, Image.Resampling.NEAREST)
    for index in drawn:
        image = table[index](image, magnitude / 10, around)
    return image


def randaugment_timm(
    image: Image.Image, operations: int, magnitude: int, around: Surroundings
) -> Image.Image:
    """The version of DeiT: timm's 'rand-m{magnitude}-n{operations}-mstd0.5-inc1'.

    15 operations, drawn with replacement; each is applied with probability 1/2, at a magnitude of
    its own, drawn around `magnitude` with standard deviation 0.5 and clipped to [0, 10].
    """
    table = list(TIMM_OPERATIONS.values())
    for index in torch.randint(len(table), (operations,)).tolist():
        if torch.rand(1).item() > APPLIED:
            continue
        drawn = magnitude + MAGNITUDE_STD * torch.randn(1).item()
        image = table[index](image, min(max(drawn, 0), MAX_MAGNITUDE["timm"]) / 10, around)
    return image


def _either_sign(value: float) -> float:
    return -value if torch.rand(1).item() < 0.5 else value


def _transform(image: Image.Image, matrix: tuple[float, ...], around: Surroundings) -> Image.Image:
    affine = Image.Transform.AFFINE
    return image.transform(
        image.size, affine, matrix, resample=around.resample, fillcolor=around.fill
    )


def _rotate(image: Image.Image, degrees: float, around: Surroundings) -> Image.Image:
    return image.rotate(degrees, resample=around.resample, fillcolor=around.fill)


# Pillow looks for the source of a pixel's centre, half a pixel from its corner; TensorFlow for that
# of the corner. A shear about the corner is moved by half of it; a shift is the same for both. The
# 1/1024 sends sources halfway between two pixels to the one where TensorFlow's rounding does.


def _tf_shear_x(image: Image.Image, shear: float, around: Surroundings) -> Image.Image:
    return _transform(image, (1, shear, 1 / 1024 - shear / 2, 0, 1, 0), around)


def _tf_shear_y(image: Image.Image, shear: float, around: Surroundings) -> Image.Image:
    return _transform(image, (1, 0, 0, shear, 1, 1 / 1024 - shear / 2), around)


def _tf_posterize(image: Image.Image, bits: float, _: Surroundings) -> Image.Image:
    # TensorFlow shifts by 7 bits where 8 are asked for: the first bit stays at magnitude 0.
    return _clear_bits(image, min(max(8 - int(bits), 0), 7))


def _timm_posterize(image: Image.Image, lost: float, _: Surroundings) -> Image.Image:
    # Black at magnitude 10, as it was when DeiT was trained; Pillow 12's posterize refuses that.
    return _clear_bits(image, 4 + int(lost))


def _clear_bits(image: Image.Image, count: int) -> Image.Image:
    return image.point([value >> count << count for value in range(256)] * 3)


def _tf_solarize(image: Image.Image, threshold: float, _: Surroundings) -> Image.Image:
    # TensorFlow compares bytes, and 256 becomes the byte 0, 384 the byte 128.
    return ImageOps.solarize(image, int(threshold) % 256)


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


def _enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[..., Image.Image]:
    return lambda image, factor, _: kind(image).enhance(factor)


def _enhance_by(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Callable[..., Image.Image]:
    """The argument is the distance to the factor 1, which changes nothing."""
    return lambda image, change, _: kind(image).enhance(max(0.1, 1 + change))


_FIXED: dict[str, Operation] = {
    "AutoContrast": Operation(lambda image, *_: ImageOps.autocontrast(image)),
    "Equalize": Operation(lambda image, *_: ImageOps.equalize(image)),
    "Invert": Operation(lambda image, *_: ImageOps.invert(image)),
}
_ROTATE = Operation(_rotate, lambda level: 30 * level, signed=True)


def _tf_enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return Operation(_enhance(kind), lambda level: 1.8 * level + 0.1)


def _tf_translate(x: int, y: int) -> Operation:
    return Operation(
        lambda image, pixels, around: _transform(
            image, (1, 0, x * pixels, 0, 1, y * pixels), around
        ),
        lambda level: TRANSLATE_PIXELS * level,
        signed=True,
    )


TF_OPERATIONS: dict[str, Operation] = {
    **_FIXED,
    "Rotate": _ROTATE,
    "Posterize": Operation(_tf_posterize, lambda level: 4 * level),
    "Solarize": Operation(_tf_solarize, lambda level: 256 * level),
    "Color": _tf_enhance(ImageEnhance.Color),
    "Contrast": _tf_enhance(ImageEnhance.Contrast),
    "Brightness": _tf_enhance(ImageEnhance.Brightness),
    "Sharpness": _tf_enhance(ImageEnhance.Sharpness),
    "ShearX": Operation(_tf_shear_x, lambda level: 0.3 * level, signed=True),
    "ShearY": Operation(_tf_shear_y, lambda level: 0.3 * level, signed=True),
    "TranslateX": _tf_translate(1, 0),
    "TranslateY": _tf_translate(0, 1),
    "Cutout": Operation(_tf_cutout, lambda level: CUTOUT_PIXELS * level),
    "SolarizeAdd": Operation(_solarize_add, lambda level: 110 * level),
}
"""By magnitude / 10. Posterize keeps more bits at a higher magnitude, all of them at 20. Solarize
is what TensorFlow runs, not what the code says: its threshold falls from 256 to 0 at 10 and 20,
which inverts the image, and is the usual 128 at 15."""


def _timm_enhance(kind: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return Operation(_enhance_by(kind), lambda level: 0.9 * level, signed=True)


def _timm_translate(x: int, y: int) -> Operation:
    def apply(image: Image.Image, share: float, around: Surroundings) -> Image.Image:
        matrix = (1, 0, x * share * image.width, 0, 1, y * share * image.height)
        return _transform(image, matrix, around)

    return Operation(apply, lambda level: TRANSLATE_SHARE * level, signed=True)


def _timm_shear(x: int, y: int) -> Operation:
    return Operation(
        lambda image, shear, around: _transform(image, (1, x * shear, 0, y * shear, 1, 0), around),
        lambda level: 0.3 * level,
        signed=True,
    )


TIMM_OPERATIONS: dict[str, Operation] = {
    **_FIXED,
    "Rotate": _ROTATE,
    "PosterizeIncreasing": Operation(_timm_posterize, lambda level: 4 * level),
    "SolarizeIncreasing": Operation(
        lambda image, depth, _: ImageOps.solarize(image, 256 - int(depth)),
        lambda level: 256 * level,
    ),
    "SolarizeAdd": Operation(_solarize_add, lambda level: 110 * level),
    "ColorIncreasing": _timm_enhance(ImageEnhance.Color),
    "ContrastIncreasing": _timm_enhance(ImageEnhance.Contrast),
    "BrightnessIncreasing": _timm_enhance(ImageEnhance.Brightness),
    "SharpnessIncreasing": _timm_enhance(ImageEnhance.Sharpness),
    "ShearX": _timm_shear(1, 0),
    "ShearY": _timm_shear(0, 1),
    "TranslateXRel": _timm_translate(1, 0),
    "TranslateYRel": _timm_translate(0, 1),
}
"""By magnitude / 10, in timm's order; all change more at a higher magnitude."""


# It holds nothing but its settings, so one serves every image.
@cache
def _torchvision(operations: int, magnitude: int) -> Callable[[Image.Image], Image.Image]:
    from torchvision.transforms import InterpolationMode, RandAugment

    bilinear = InterpolationMode.BILINEAR
    bins = MAX_MAGNITUDE["torchvision"] + 1
    return RandAugment(
        operations, magnitude, bins, interpolation=bilinear, fill=[float(v) for v in GRAY]
    )
