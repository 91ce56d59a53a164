"""How other projects write down what happens to an image, and our dictionary for the same.

Ours: image_size [h, w], resize "crop" or "squash", crop_fraction, interpolation, mean, std, and
channels where images are not RGB; it is what vit.data.preprocess.Preprocess reads. This room does
not import that one.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from vit.errors import UserError

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5, 0.5, 0.5]
"""Google's weights see pixels in [-1, 1]."""

_PILLOW = {2: "bilinear", 3: "bicubic"}
INTERPOLATIONS = tuple(_PILLOW.values())
RESIZES = ("crop", "squash")
CROP_FRACTION = 0.875
"""Of a description that does not state it; the default of vit.data.preprocess.Preprocess."""


def described(
    image_size: tuple[int, int],
    *,
    mean: list[float],
    std: list[float],
    interpolation: str,
    crop_fraction: float,
    resize: str = "crop",
) -> dict[str, Any]:
    """Our dictionary, of plain JSON types; with the channels where there are not three."""
    channels = {} if len(mean) == len(HALF) else {"channels": len(mean)}
    return {
        "image_size": list(image_size),
        "resize": resize,
        "crop_fraction": crop_fraction,
        "interpolation": interpolation,
        "mean": [float(value) for value in mean],
        "std": [float(value) for value in std],
        **channels,
    }


class Inexpressible(UserError):
    """A setting with which images are prepared as is not done here; it says which."""


def preparation(
    read: Callable[..., dict[str, Any] | None], values: dict[str, Any], *size: Any
) -> dict[str, Any]:
    """`preprocess` and `unprepared` of a file, by `from_huggingface` or `from_timm`."""
    try:
        return {"preprocess": read(values, *size)}
    except Inexpressible as error:
        return {"preprocess": None, "unprepared": str(error)}


# Image processor of transformers 5.23 -> its defaults. All do the same steps with what they are
# given: resize, crop, rescale, normalise; a size of one number is an edge for those of CLIP.
_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224},
    "crop_size": 224,
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": {"size": 224},
    "DeiT": {"size": 256, "crop_size": 224, "do_center_crop": True, "resample": 3},
    "Siglip": {"size": 224, "resample": 3},
    "DINOv3ViT": {"size": 224, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD},
    "Bit": _CLIP,
    "CLIP": _CLIP,
}
_SUFFIXES = re.compile("(FeatureExtractor|ImageProcessor)(Fast|Pil)?$")
# Settings of other processors, which change images where they are on.
_OTHERS = ("crop_pct", "do_flip_channel_order", "do_pad", "keep_aspect_ratio", "offset")


def from_huggingface(values: dict[str, Any], size: tuple[int, int]) -> dict[str, Any] | None:
    """preprocessor_config.json; None where it is absent. Inexpressible for what we cannot do.

    A resize to height and width squashes (ViT, DeiT), one to "shortest_edge" keeps the aspect.
    Other factors than 1/255, and no normalising, are folded into mean and std.
    `size`: the model's, where the file gives none.
    """
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        return None
    kind = values.get("image_processor_type", values.get("feature_extractor_type"))
    known = _PROCESSORS.get(_SUFFIXES.sub("", kind or ""))
    if kind is not None and known is None:
        raise _unlike("image_processor_type", kind)
    for name in _OTHERS:
        if values.get(name):
            raise _unlike(name, values[name])
    # Without a type a crop that is given is done.
    usual = known or {"size": dict(zip(("height", "width"), size, strict=True))}
    usual = {"do_center_crop": known is None and "crop_size" in values, **usual}
    values = (
        {"do_resize": True, "resample": 2, "image_mean": HALF, "image_std": HALF} | usual | values
    )
    if not values["do_resize"]:
        raise _unlike("do_resize", False)
    if values["resample"] not in _PILLOW:
        raise _unlike("resample", values["resample"])
    resized, edge = _resized(values["size"], is_edge=known is _CLIP)
    seen = resized
    if values["do_center_crop"]:
        crop = values.get("crop_size", resized[0])
        seen = (crop, crop) if isinstance(crop, int) else (crop.get("height"), crop.get("width"))
        if None in seen:
            raise _unlike("crop_size", crop)
    elif edge:
        raise Inexpressible("do_center_crop=False with a shortest edge leaves images of any shape")
    fraction = seen[0] / resized[0]
    same = tuple(round(side / fraction) for side in seen) == resized
    if fraction > 1 or not same:
        raise Inexpressible(f"crop_size={list(seen)} of size={list(resized)} is not done here")
    mean, std = _folded(values)
    return described(
        seen,
        mean=mean,
        std=std,
        interpolation=_PILLOW[values["resample"]],
        crop_fraction=fraction,
        resize="crop" if edge else "squash",
    )


def _unlike(name: str, value: Any) -> Inexpressible:
    return Inexpressible(f"{name}={value!r} is not done here")


def _resized(entry: Any, *, is_edge: bool) -> tuple[tuple[int, int], bool]:
    """(height, width) to which images are resized, and whether it is their shorter side's."""
    if isinstance(entry, int):
        return (entry, entry), is_edge
    if set(entry) == {"height", "width"}:
        return (entry["height"], entry["width"]), False
    if set(entry) == {"shortest_edge"}:
        return (entry["shortest_edge"],) * 2, True
    raise _unlike("size", entry)


def _folded(values: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Mean and std for pixels in [0, 1], of those for pixels that are rescaled otherwise or not."""
    mean, std = values["image_mean"], values["image_std"]
    if not values.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    whole = 255 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1)
    if math.isclose(whole, 1, rel_tol=1e-6):
        return mean, std
    return [value / whole for value in mean], [value / whole for value in std]


def to_huggingface(values: dict[str, Any], kind: str) -> dict[str, Any]:
    """The preprocessor_config.json that makes transformers do the same."""
    height, width = values["image_size"]
    fraction = values["crop_fraction"]
    resized = (round(height / fraction), round(width / fraction))
    squash = values["resize"] == "squash"
    return {
        # The class that can both resize to an edge and crop.
        "image_processor_type": "ViTImageProcessor"
        if kind == "vit" and squash
        else "BitImageProcessor",
        "do_resize": True,
        "size": dict(zip(("height", "width"), resized, strict=True))
        if squash
        else {"shortest_edge": min(resized)},
        "do_center_crop": not squash or fraction < 1,
        "crop_size": {"height": height, "width": width},
        "resample": next(code for code, name in _PILLOW.items() if name == values["interpolation"]),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": values["mean"],
        "image_std": values["std"],
    }


def from_timm(values: dict[str, Any]) -> dict[str, Any] | None:
    """A timm pretrained_cfg; None where it is absent. Inexpressible for what we cannot do."""
    modes = {"center": "crop", "squash": "squash"}
    mode, filter_ = values.get("crop_mode", "center"), values.get("interpolation", "bicubic")
    if not {"mean", "std", "input_size"} <= set(values):
        return None
    if mode not in modes:
        raise _unlike("crop_mode", mode)
    if filter_ not in INTERPOLATIONS:
        raise _unlike("interpolation", filter_)
    _, height, width = values["input_size"]
    fraction = timms_fraction(height, values.get("crop_pct", 0.875))
    return described(
        (height, width),
        mean=values["mean"],
        std=values["std"],
        interpolation=filter_,
        crop_fraction=fraction,
        resize=modes[mode],
    )


def timms_fraction(side: int, crop_pct: float) -> float:
    """Our crop_fraction for timm's.

    timm rounds the resized side down where we round to the nearest: 224 / 0.9 is 248 and 249.
    """
    resized = math.floor(side / crop_pct)
    return crop_pct if resized == round(side / crop_pct) else side / resized


def to_timm(values: dict[str, Any], in_channels: int) -> dict[str, Any]:
    """The fields of a timm pretrained_cfg that make timm do the same."""
    side, fraction = values["image_size"][0], values["crop_fraction"]
    if (resized := round(side / fraction)) != math.floor(side / fraction):
        fraction = min(side / (resized + 0.5), 1.0)
    return {
        "input_size": [in_channels, *values["image_size"]],
        "interpolation": values["interpolation"],
        "crop_pct": fraction,
        "crop_mode": "squash" if values["resize"] == "squash" else "center",
        "mean": values["mean"],
        "std": values["std"],
    }
