"""How other projects write down what happens to an image, and our dictionary for the same.

Ours: image_size [h, w], resize "crop" or "squash", crop_fraction, interpolation, mean, std; it is
what vit.data.preprocess.Preprocess reads. This room does not import that one.
"""

import math
from typing import Any

IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5, 0.5, 0.5]
"""Google's weights see pixels in [-1, 1]."""

_PILLOW = {2: "bilinear", 3: "bicubic"}
INTERPOLATIONS = tuple(_PILLOW.values())
RESIZES = ("crop", "squash")
WHOLE = 1.0
"""crop_fraction of our files that do not state it, which were written when this was the default."""


def described(
    image_size: tuple[int, int],
    *,
    mean: list[float],
    std: list[float],
    interpolation: str,
    crop_fraction: float,
    resize: str = "crop",
) -> dict[str, Any]:
    """Our dictionary, of plain JSON types."""
    return {
        "image_size": list(image_size),
        "resize": resize,
        "crop_fraction": crop_fraction,
        "interpolation": interpolation,
        "mean": [float(value) for value in mean],
        "std": [float(value) for value in std],
    }


def from_huggingface(values: dict[str, Any], size: tuple[int, int]) -> dict[str, Any] | None:
    """preprocessor_config.json; None where it is absent or says what we cannot do.

    A resize to height and width squashes (ViT, DeiT), one to "shortest_edge" keeps the aspect.
    `size`: the model's, where the file gives none.
    """
    resample = values.get("resample", 2)
    if not values or resample not in _PILLOW:
        return None
    size_entry = values.get("size", {})
    if isinstance(size_entry, int):
        size_entry = {"height": size_entry, "width": size_entry}
    cropped = values.get("crop_size") if values.get("do_center_crop", True) else None
    if isinstance(cropped, int):
        cropped = {"height": cropped, "width": cropped}
    edge = size_entry.get("shortest_edge")
    resized = (
        (size_entry["height"], size_entry["width"])
        if "height" in size_entry
        else (edge, edge)
        if edge
        else size
    )
    seen = (cropped["height"], cropped["width"]) if cropped else resized
    return described(
        seen,
        mean=values.get("image_mean", HALF),
        std=values.get("image_std", HALF),
        interpolation=_PILLOW[resample],
        crop_fraction=min(seen[0] / resized[0], 1.0),
        resize="crop" if edge else "squash",
    )


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
    """A timm pretrained_cfg; None where it is absent or says what we cannot do (padding)."""
    modes = {"center": "crop", "squash": "squash"}
    mode, filter_ = values.get("crop_mode", "center"), values.get("interpolation", "bicubic")
    if not {"mean", "std", "input_size"} <= set(values) or mode not in modes:
        return None
    if filter_ not in _PILLOW.values():
        return None
    _, height, width = values["input_size"]
    fraction = values.get("crop_pct", 0.875)
    # timm rounds the resized side down where we round to the nearest: 224 / 0.9 is 248 and 249.
    if (resized := math.floor(height / fraction)) != round(height / fraction):
        fraction = height / resized
    return described(
        (height, width),
        mean=values["mean"],
        std=values["std"],
        interpolation=filter_,
        crop_fraction=fraction,
        resize=modes[mode],
    )


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
