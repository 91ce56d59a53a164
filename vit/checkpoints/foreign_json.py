"""Types of the values that are read from the JSON files of timm and Hugging Face.

They are edited by hand and written by other versions, so each value that is read is compared with
what it can be before anything is computed with it. Fields that are not read may hold anything.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vit.checkpoints.files import WeightFile
from vit.errors import UserError, shorten

_MOST_PIXELS = 1_000_000
_Check = Callable[[Any], bool]


def check_types(file: WeightFile) -> None:
    """UserError for a value of config.json or preprocessor_config.json that cannot be."""
    folder = file.path.parent
    for name, values, wanted in (
        ("config.json", file.config, _CONFIG),
        ("preprocessor_config.json", file.preprocessor, _PREPROCESSOR),
    ):
        _check(f"{folder / name}", values, wanted)
    for part, wanted in (("pretrained_cfg", _PRETRAINED_CFG), ("model_args", _MODEL_ARGS)):
        _check(f"{folder / 'config.json'}: {part}", file.config.get(part) or {}, wanted)


def _check(where: str, values: Mapping[str, Any], wanted: Mapping[str, tuple[str, _Check]]) -> None:
    for name, (what, check) in wanted.items():
        if name in values and not check(values[name]):
            raise UserError(f"{where}: {name}={shorten(repr(values[name]))} is not {what}")


def _whole(value: object, least: int = 1, most: int = _MOST_PIXELS) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _finite(value) and value > 0


def _share(value: Any) -> bool:
    return _finite(value) and 0 <= value <= 1


def _list_of(check: _Check, *lengths: int) -> _Check:
    return lambda v: (
        isinstance(v, list) and (not lengths or len(v) in lengths) and all(map(check, v))
    )


def _text(value: object) -> bool:
    return isinstance(value, str)


def _object(value: object) -> bool:
    return isinstance(value, dict)


def _labels(value: object) -> bool:
    """Class names by number, as Hugging Face writes them."""
    return isinstance(value, dict) and all(key.isascii() and key.isdigit() for key in value)


def _sides(value: object) -> bool:
    """Sides of an image in one of Hugging Face's spellings."""
    if not isinstance(value, dict):
        return _whole(value)
    edges = [value[name] for name in ("height", "width", "shortest_edge") if name in value]
    complete = ("height" in value) == ("width" in value)
    return complete and all(map(_whole, edges))


def _or_null(check: _Check) -> _Check:
    return lambda value: value is None or check(value)


_TEXT = ("text", _text)
_TEXT_OR_NULL = ("text", _or_null(_text))
_OBJECT_OR_NULL = ("an object", _or_null(_object))
_PIXELS = (
    "one or two whole numbers of pixels",
    _or_null(lambda v: _whole(v) or _list_of(_whole, 2)(v)),
)
_HEADS = ("a whole number of at least 1", _or_null(_whole))
_FRACTION = ("a number above 0", _positive)
_MEAN = ("a list of finite numbers", lambda v: bool(v) and _list_of(_finite)(v))
_STD = ("a list of numbers above 0", lambda v: bool(v) and _list_of(_positive)(v))
_CONFIG: dict[str, tuple[str, _Check]] = {
    # timm
    "architecture": _TEXT_OR_NULL,
    "pretrained_cfg": _OBJECT_OR_NULL,
    "model_args": _OBJECT_OR_NULL,
    "global_pool": _TEXT_OR_NULL,
    "label_names": ("a list of class names", _or_null(_list_of(_text))),
    "label_descriptions": _OBJECT_OR_NULL,
    # Hugging Face
    "model_type": _TEXT_OR_NULL,
    "hidden_act": _TEXT,
    "pooler_act": _TEXT,
    "problem_type": _TEXT_OR_NULL,
    "label_thresholds": ("a list of numbers from 0 to 1", _or_null(_list_of(_share))),
    "num_attention_heads": _HEADS,
    "layer_norm_eps": ("a number above 0", _positive),
    "layerscale_value": ("a finite number", _finite),
    "image_size": _PIXELS,
    "id2label": ("an object of class names by number", _or_null(_labels)),
}
_PRETRAINED_CFG: dict[str, tuple[str, _Check]] = {
    "architecture": _TEXT_OR_NULL,
    "input_size": ("[channels, height, width] of an image", _list_of(_whole, 3)),
    "crop_mode": _TEXT,
    "crop_pct": _FRACTION,
    "interpolation": _TEXT,
    "mean": _MEAN,
    "std": _STD,
    "label_names": ("a list of class names", _or_null(_list_of(_text))),
}
_MODEL_ARGS: dict[str, tuple[str, _Check]] = {
    "num_heads": _HEADS,
    "img_size": _PIXELS,
    "act_layer": _TEXT_OR_NULL,
    "global_pool": _TEXT_OR_NULL,
}
_PREPROCESSOR: dict[str, tuple[str, _Check]] = {
    "resample": ("a whole number", _or_null(lambda v: _whole(v, 0))),
    "size": ("a whole number of pixels, or an object of sides", _or_null(_sides)),
    "crop_size": ("a whole number of pixels, or an object of sides", _or_null(_sides)),
    "image_mean": ("a list of finite numbers", _or_null(_MEAN[1])),
    "image_std": ("a list of numbers above 0", _or_null(_STD[1])),
    "image_processor_type": _TEXT_OR_NULL,
    "feature_extractor_type": _TEXT_OR_NULL,
    "rescale_factor": ("a number above 0", _or_null(_positive)),
    **{
        f"do_{step}": ("true or false", _or_null(lambda v: isinstance(v, bool)))
        for step in ("resize", "center_crop", "rescale", "normalize")
    },
}
