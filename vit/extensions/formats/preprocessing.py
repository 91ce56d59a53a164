"""Image preparation as other projects write it down, from and to `Preprocess.to_dict()`."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from vit.errors import UserError
from vit.models.zoo import ModelConfig
from vit.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, CropRounding, Preprocess

_PILLOW = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of its filters."""
HUGGING_FACE: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("huggingface.yaml").read_text(encoding="utf-8")
)
"""Tables of the library; the file explains them."""


class Inexpressible(UserError):
    """Names a setting with which images cannot be prepared here."""


def preparation(
    read: Callable[..., dict[str, Any] | None], values: dict[str, Any], *size: Any
) -> dict[str, Any]:
    """`preprocess` and `unprepared` of a file, by `from_huggingface` or `from_timm`."""
    try:
        return {"preprocess": read(values, *size)}
    except Inexpressible as error:
        return {"preprocess": None, "unprepared": str(error)}


def without_rest(prepared: dict[str, Any], patch_size: int) -> tuple[dict[str, Any], list[str]]:
    """A `preparation` whose images the patches fill, and a note if that cuts them: other projects
    leave the last rows and columns of such images out of the model (SigLIP's 384 by 14)."""
    if prepared["preprocess"] is None:
        return prepared, []
    steps = Preprocess.from_dict(prepared["preprocess"])
    height, width = (side - side % patch_size for side in steps.image_size)
    if (height, width) == steps.image_size or 0 in (height, width):
        return prepared, []
    fraction = 1.0 if steps.resize == "pad" else height / steps.resized[0]
    cut = replace(steps, image_size=(height, width), crop_fraction=fraction)
    sides = "x".join(map(str, steps.image_size))
    note = f"patches of {patch_size} do not fill {sides} pixels: images are cut to {height}x{width}"
    return {"preprocess": cut.to_dict()}, [note]


def squashed(size: tuple[int, int]) -> dict[str, Any]:
    """The evaluation of Google's code: no crop, pixels in [-1, 1]."""
    return Preprocess(image_size=size, resize="squash", crop_fraction=1.0).to_dict()


def unrecorded(config: ModelConfig) -> Preprocess:
    """The defaults for a model whose file does not record how images are prepared: [-1, 1]."""
    channels = config.in_channels
    half, planes = HALF[:1] * channels, None if channels == 3 else channels
    return Preprocess(image_size=config.size, mean=half, std=half, channels=planes)


def of_imagenet(size: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """Preparation with ImageNet's mean and standard deviation; `fields`: of Preprocess."""
    return Preprocess(image_size=size, mean=IMAGENET_MEAN, std=IMAGENET_STD, **fields).to_dict()


_SUFFIXES = re.compile("(FeatureExtractor|ImageProcessor)(Fast|Pil)?$")


def from_huggingface(values: dict[str, Any], size: tuple[int, int]) -> dict[str, Any] | None:
    """preprocessor_config.json; None if it is absent. Raises Inexpressible.

    A resize to height and width squashes (ViT, DeiT), one to "shortest_edge" keeps the aspect.
    Other factors than 1/255, and no normalising, are folded into mean and std.
    `size`: the model's, if the file gives none.
    """
    values = {name: value for name, value in values.items() if value is not None}
    if not values:
        return None
    kind = values.get("image_processor_type", values.get("feature_extractor_type"))
    usual = HUGGING_FACE["processors"].get(_SUFFIXES.sub("", kind or ""))
    if kind is not None and usual is None:
        raise _unlike("image_processor_type", kind)
    is_edge = usual is HUGGING_FACE["processors"]["CLIP"]
    if usual is None:  # without a type a crop that is given is done
        usual = {"size": _sides(size), "do_center_crop": "crop_size" in values}
    for name in HUGGING_FACE["unsupported"]:
        if values.get(name):
            raise _unlike(name, values[name])
    values = {
        **{"do_resize": True, "resample": 2, "image_mean": HALF, "image_std": HALF},
        **{"do_center_crop": False, **usual, **values},
    }
    if not values["do_resize"]:
        raise _unlike("do_resize", False)
    if values["resample"] not in _PILLOW:
        raise _unlike("resample", values["resample"])
    resized, edge = _resized(values["size"], is_edge=is_edge)
    seen = _seen(values, resized, edge=edge)
    fraction = seen[0] / resized[0]
    if fraction > 1 or tuple(round(side / fraction) for side in seen) != resized:
        raise Inexpressible(f"crop_size={list(seen)} of size={list(resized)} is not done here")
    mean, std = _folded(values)
    return Preprocess.from_dict(
        {
            "image_size": seen,
            "resize": "crop" if edge else "squash",
            "crop_fraction": fraction,
            "crop_rounding": "floor" if values["do_center_crop"] else "even",
            "interpolation": _PILLOW[values["resample"]],
            **_colors(mean, std),
        }
    ).to_dict()


def _unlike(name: str, value: Any) -> Inexpressible:
    return Inexpressible(f"{name}={value!r} is not done here")


def _sides(size: Sequence[int]) -> dict[str, int]:
    return dict(zip(("height", "width"), size, strict=True))


def _colors(mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """Mean and std, and `channels` for images that are not RGB."""
    colors = {name: [float(v) for v in values] for name, values in (("mean", mean), ("std", std))}
    return colors if len(mean) == 3 else {**colors, "channels": len(mean)}


def _resized(entry: Any, *, is_edge: bool) -> tuple[tuple[int, int], bool]:
    """(height, width) of the resize, and True if it is that of the shorter side."""
    if isinstance(entry, int):
        return (entry, entry), is_edge
    if None in entry.values():
        raise _unlike("size", entry)
    if set(entry) == {"height", "width"}:
        return (entry["height"], entry["width"]), False
    if set(entry) == {"shortest_edge"}:
        return (entry["shortest_edge"],) * 2, True
    raise _unlike("size", entry)


def _seen(values: dict[str, Any], resized: tuple[int, int], *, edge: bool) -> tuple[int, int]:
    """(height, width) after the crop, if there is one."""
    if not values["do_center_crop"]:
        if not edge:
            return resized
        raise Inexpressible("do_center_crop=False with a shortest edge leaves images of any shape")
    crop = values.get("crop_size", resized[0])
    seen = (crop, crop) if isinstance(crop, int) else (crop.get("height"), crop.get("width"))
    if None in seen:
        raise _unlike("crop_size", crop)
    return seen


def _folded(values: dict[str, Any]) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and std for pixels in [0, 1]."""
    mean, std = values["image_mean"], values["image_std"]
    if not values.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    whole = 255 * (values.get("rescale_factor", 1 / 255) if values.get("do_rescale", True) else 1)
    if math.isclose(whole, 1, rel_tol=1e-6):
        return mean, std
    return [value / whole for value in mean], [value / whole for value in std]


def to_huggingface(values: dict[str, Any], kind: str) -> dict[str, Any]:
    """The preprocessor_config.json that makes transformers do the same. UserError for a pad."""
    steps = Preprocess.from_dict(values)
    squash, size = steps.resize == "squash", steps.image_size
    if steps.resize == "pad" or not (squash or size[0] == size[1]):
        raise UserError(f"transformers has no resize={steps.resize} to {size}; try --to timm")
    # Of the library's classes, BiT's can both resize to an edge and crop.
    processor = "ViTImageProcessor" if kind == "vit" and squash else "BitImageProcessor"
    return {
        "image_processor_type": processor,
        "do_resize": True,
        "size": _sides(steps.resized) if squash else {"shortest_edge": min(steps.resized)},
        "do_center_crop": not squash or steps.crop_fraction < 1,
        "crop_size": _sides(steps.image_size),
        "resample": next(code for code, name in _PILLOW.items() if name == steps.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": values["mean"],
        "image_std": values["std"],
    }


_TIMM_MODES = {"center": "crop", "squash": "squash", "border": "pad"}


def from_timm(values: dict[str, Any]) -> dict[str, Any] | None:
    """A timm pretrained_cfg; None if it is absent. Raises Inexpressible."""
    values = {name: value for name, value in values.items() if value is not None}
    mode, filter_ = values.get("crop_mode", "center"), values.get("interpolation", "bicubic")
    if not {"mean", "std", "input_size"} <= set(values):
        return None
    crop_pct = values.get("crop_pct", 0.875)
    if mode not in _TIMM_MODES or (mode == "border" and crop_pct != 1):
        raise _unlike("crop_mode", mode)
    if filter_ not in _PILLOW.values():
        raise _unlike("interpolation", filter_)
    size = tuple(values["input_size"][1:])
    return Preprocess.from_dict(
        {
            "image_size": size,
            "resize": _TIMM_MODES[mode],
            "crop_fraction": timms_fraction(size, crop_pct),
            "interpolation": filter_,
            **_colors(values["mean"], values["std"]),
        }
    ).to_dict()


def timms_fraction(size: Sequence[int], crop_pct: float) -> float:
    """Our crop_fraction for timm's, which rounds the resized side down: 224 / 0.9 to 248."""
    return _fraction(size, [math.floor(side / crop_pct) for side in size], crop_pct, offset=0.5)


def _fraction(
    sizes: Sequence[int], resized: Sequence[int], wanted: float, *, offset: float
) -> float:
    """A share near `wanted` by which each size is divided to its `resized` side.

    `offset`: 0.5 where the quotient is rounded (here), 0 where it is rounded down (timm).
    """
    pairs = list(zip(sizes, resized, strict=True))
    low = max(size / (side + 1 - offset) for size, side in pairs)  # excluded
    high = min(size / (side - offset) for size, side in pairs)
    for share in (wanted, *(size / side for size, side in pairs), min((low + high) / 2, 1.0)):
        if low < share <= high:
            return share
    raise Inexpressible(f"no crop fraction resizes {list(sizes)} to {list(resized)}")


def rounding_note(project: str, values: dict[str, Any], rounding: CropRounding) -> list[str]:
    """A note if `project`, whose centre crops have this rounding, cuts some photos otherwise."""
    steps = Preprocess.from_dict(values)
    margins = (a - b for a, b in zip(steps.resized, steps.image_size, strict=True))
    apart = {"crop": True, "squash": any(margin % 2 for margin in margins), "pad": False}
    if steps.crop_rounding == rounding or not apart[steps.resize]:
        return []
    return [
        f"{project} cuts photos with an odd margin one pixel apart: its centre crop rounds "
        f"crop_rounding={rounding}, this model's {steps.crop_rounding}"
    ]


def to_timm(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of a timm pretrained_cfg that make timm do the same."""
    steps = Preprocess.from_dict(values)
    fraction = _fraction(steps.image_size, steps.resized, steps.crop_fraction, offset=0.0)
    return {
        "interpolation": values["interpolation"],
        "crop_pct": fraction,
        "crop_mode": next(k for k, v in _TIMM_MODES.items() if v == values["resize"]),
        "mean": values["mean"],
        "std": values["std"],
    }
