"""What config.json and the header of a file of ours say about a model, checked before it is used.

Whatever is not known here is not believed: an edited or damaged description ends in one line, and
nothing is allocated for a model that is larger than the tensors of its file.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.checkpoints.files import reason
from vit.checkpoints.preprocessing import CROP_FRACTION, HALF, INTERPOLATIONS, RESIZES, described
from vit.errors import UserError, did_you_mean, shorten
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.resnet import ROOT_CHANNELS
from vit.models.zoo import ModelConfig, config_from_dict

VERSION = 1
"""Version of the format; a file of a later version is refused."""
MAX_PIXELS = 1 << 26
"""8192 x 8192: images larger than this are brought to no model, so a description that asks for
them is damaged. Without a limit it could make the reader fill its memory."""
_POSITIONS = 1 << 24
"""Numbers that any model may have, however few its file holds: fixed positions are in no file."""
_MAX_CHANNELS = 16
_LARGEST_VALUE = 1e12
"""The same bound for images that are not RGB, whose values have any unit."""
_LARGEST = 1e4
"""Bound for the mean and std of images in [0, 1]: float32 could not hold the result beyond it."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """A description in which everything is of its kind."""

    config: ModelConfig
    classes: list[str] | None
    preprocess: dict[str, Any] | None
    extra: dict[str, Any]
    sha256: str | None


def checked(
    values: Mapping[str, Any], path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> Description:
    """The one place where a description is checked.

    Args:
        values: version, model, classes, preprocess, extra and sha256; all but model may be absent.
        path: The file in which they stand, for messages.
        shapes: The tensors of the model's file by name.

    Raises UserError that names the path and the first value that is wrong.
    """
    try:
        _check_version(values.get("version", VERSION))
        if not isinstance(values.get("model"), dict):
            raise UserError("it does not say which model it holds")
        config = config_from_dict(values["model"])
        _check_size(config, shapes)
        sha256 = values.get("sha256")
        if sha256 is not None and not _is(sha256, r"[0-9a-f]{64}"):
            raise UserError(f"sha256={shorten(sha256)} is not 64 hexadecimal digits")
        return Description(
            config=config,
            classes=_classes(values.get("classes"), config.num_classes),
            preprocess=_preprocess(values.get("preprocess")),
            extra=_extra(values.get("extra"), config.num_classes),
            sha256=sha256,
        )
    except UserError as error:
        raise UserError(f"{path}: {reason(error)}") from error


def _check_version(version: Any) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UserError(f"version={shorten(version)} is not a whole number above 0")
    if version > VERSION:
        raise UserError("saved by a newer version of vit; upgrade vit")


def _classes(classes: Any, num_classes: int) -> list[str] | None:
    if classes is None:
        return None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise UserError(f"classes={shorten(classes)} is not a list of names")
    if len(classes) != num_classes:
        raise UserError(f"{len(classes)} class names for num_classes={num_classes}")
    seen: set[str] = set()
    for name in classes:
        if name in seen:
            raise UserError(f"duplicate class name {shorten(name)!r}")
        if not _is_unicode(name):
            raise UserError(f"the class name {shorten(name)!r} is not valid Unicode")
        seen.add(name)
    return classes


def _preprocess(values: Any) -> dict[str, Any] | None:
    """Names, kinds and ranges. What is absent has a default, the image size that of the model."""
    if values is None:
        return None
    if not isinstance(values, dict):
        raise UserError(f"preprocess={shorten(values)} is not an object")
    count, largest = values.get("channels"), _LARGEST
    if count is not None:
        if not _numbers([count], 1, 1, _MAX_CHANNELS, int):
            raise UserError(f"preprocess: channels={shorten(count)} is not a number from 1 to 16")
        largest = _LARGEST_VALUE
    colors = "three" if count is None else f"{count}"
    meaning = ": red, green and blue" if count is None else ", one per channel"
    checks: dict[str, Callable[[Any], bool]] = {
        "image_size": lambda v: _numbers(v, 2, 1, MAX_PIXELS, int),
        "resize": lambda v: v in RESIZES,
        "crop_fraction": lambda v: _numbers([v], 1, 1e-6, 1),
        "interpolation": lambda v: v in INTERPOLATIONS,
        "channels": lambda v: v == count,
        "mean": lambda v: _numbers(v, count or 3, -largest, largest),
        "std": lambda v: _numbers(v, count or 3, 1 / largest, largest),
    }
    expected = {
        "image_size": "[height, width] in pixels",
        "resize": f"one of {', '.join(RESIZES)}",
        "crop_fraction": "a number above 0, at most 1",
        "interpolation": f"one of {', '.join(INTERPOLATIONS)}",
        "mean": f"{colors} finite numbers{meaning}",
        "std": f"{colors} finite numbers above 0{meaning}",
        "channels": "a number from 1 to 16",
    }
    for name, value in values.items():
        if name not in checks:
            raise UserError(
                f"preprocess has no field {shorten(name)!r}"
                + (did_you_mean(name, checks) or f"; the known ones are {', '.join(checks)}")
            )
        if not checks[name](value):
            raise UserError(f"preprocess: {name}={shorten(value)} is not {expected[name]}")
    sides, fraction = values.get("image_size", ()), values.get("crop_fraction", CROP_FRACTION)
    if math.prod(side / fraction for side in sides) > MAX_PIXELS:
        raise UserError(
            f"preprocess: image_size={values['image_size']} with crop_fraction={fraction} takes "
            f"more than {MAX_PIXELS:,} pixels"
        )
    return values


def completed(preprocess: Mapping[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """A checked preprocessing with the defaults of what it leaves out; `size` is the model's."""
    half = HALF[:1] * (preprocess.get("channels") or 3)
    fraction = CROP_FRACTION
    defaults = described(
        size, mean=half, std=half, interpolation="bilinear", crop_fraction=fraction
    )
    return {**defaults, **preprocess}


def _extra(extra: Any, num_classes: int) -> dict[str, Any]:
    """Recipe, metrics, source: passed on, not used, but for `multilabel` and `thresholds`."""
    if extra is None:
        return {}
    if not isinstance(extra, dict):
        raise UserError(f"extra={shorten(extra)} is not an object")
    multilabel = extra.get("multilabel", False)
    if not isinstance(multilabel, bool):
        raise UserError(f"extra: multilabel={shorten(multilabel)} is not true or false")
    thresholds = extra.get("thresholds")
    if thresholds is not None and not _numbers(thresholds, num_classes, 0, 1):
        raise UserError(
            f"extra: thresholds={shorten(thresholds)} is not a list of {num_classes} numbers from "
            "0 to 1"
        )
    try:
        json.dumps(extra, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise UserError(f"extra cannot be written as JSON ({error})") from error
    return extra


def _check_size(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses a model that is far larger than its file before it is built.

    A model that lacks a few tensors is built, without memory, so that these can be named.
    """
    tensors, numbers = _least(config)
    held = sum(math.prod(shape) for shape in shapes.values())
    if tensors > 2 * len(shapes) + 100 or numbers > 4 * held + _POSITIONS:
        raise UserError(
            f"the model described has at least {tensors:,} tensors with {numbers:,} numbers, and "
            f"the file holds {len(shapes):,} with {held:,}"
        )
    # Positions that are computed are in no file.
    if isinstance(config, ViTConfig) and math.prod(config.size) > MAX_PIXELS:
        height, width = config.size
        raise UserError(f"image_size={height}x{width} is more than {MAX_PIXELS:,} pixels")
    if isinstance(config, ViTConfig) and config.computed_positions > max(_POSITIONS, held):
        raise UserError(
            f"image_size={list(config.size)} makes {config.computed_positions:,} numbers of fixed "
            f"positions for a file of {held:,}"
        )


def _least(config: ModelConfig) -> tuple[int, int]:
    """Lower bounds for the tensors of a model and the numbers in them, of every size it has."""
    if isinstance(config, ResNetConfig):
        channels = config.root_channels
        numbers = 49 * config.in_channels * channels + channels**2
        return 3 * sum(config.depths), numbers + config.num_classes * channels
    d = config.width
    layer = 4 * d * d + 2 * d * config.mlp_dim
    side = config.patch_size // config.stem_stride
    head = (config.representation_size or d) * config.num_classes
    head += (config.representation_size or 0) * d
    patches = d * side * side if config.stem_depths is not None else 0
    patches = patches or config.in_channels * d * side * side
    if config.pos_embed == "learned":
        patches += config.num_patches * d
    if config.stem_depths is not None:
        patches += config.in_channels * ROOT_CHANNELS
    stem = 3 * sum(config.stem_depths or ())
    return 8 * config.depth + stem, config.depth * layer + patches + head + config.num_registers * d


def _numbers(values: Any, count: int, least: float, most: float, kinds: Any = (int, float)) -> bool:
    """Whether `values` is a list of so many finite numbers between `least` and `most`."""
    return (
        isinstance(values, list | tuple)
        and len(values) == count
        and all(isinstance(n, kinds) and not isinstance(n, bool) for n in values)
        and all(least <= n <= most for n in values)  # false for NaN
    )


def _is(value: Any, pattern: str) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
