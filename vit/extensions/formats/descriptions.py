"""Types of the values that are read from JSON files of timm and of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit.errors import Range, UserError, shorten
from vit.weights.weight_file import WeightFile


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value) and value > 0


def _is_size(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    sides = value if isinstance(value, list) else [value]
    return 1 <= len(sides) <= 2 and all(side is None or _is_whole(side) for side in sides)


WHOLE = Range("a whole number above 0", _is_whole)
NUMBER = Range("a finite number", _is_number)
POSITIVE = Range("a number above 0", lambda value: _is_number(value) and value > 0)
FLAG = Range("true or false", lambda value: isinstance(value, bool))
TEXT = Range("text", lambda value: isinstance(value, str))
WORD = Range("a number or a name", lambda value: isinstance(value, int | str))
SIZE = Range("one side or (height, width)", _is_size)
SHAPE = Range(
    "[channels, height, width]",
    lambda value: isinstance(value, list) and len(value) == 3 and all(map(_is_whole, value)),
)
NUMBERS = Range(
    "a list of numbers",
    lambda value: isinstance(value, list) and bool(value) and all(map(_is_number, value)),
)
NAMES = Range(
    "a list of names",
    lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
)
OBJECT = Range("an object", lambda value: isinstance(value, dict))
LABELS = Range(
    "an object of numbers and names",
    lambda value: isinstance(value, dict) and all(key.lstrip("-").isdigit() for key in value),
)
_PRETRAINED: dict[str, Range] = {
    "architecture": TEXT,
    "input_size": SHAPE,
    "mean": NUMBERS,
    "std": NUMBERS,
    "crop_pct": POSITIVE,
    "crop_mode": TEXT,
    "interpolation": TEXT,
    "label_names": NAMES,
}
_ARGUMENTS: dict[str, Range] = {
    "num_heads": WHOLE,
    "img_size": SIZE,
    "global_pool": TEXT,
    "act_layer": TEXT,
    "rope_temperature": POSITIVE,
    "attn_type": TEXT,
}
_TOWER: dict[str, Range] = {
    "hidden_act": TEXT,
    "image_size": SIZE,
    "patch_size": WHOLE,
    "num_attention_heads": WHOLE,
    "layer_norm_eps": NUMBER,
}
_CONFIG: dict[str, Range | dict[str, Range]] = {
    "architecture": TEXT,
    "global_pool": TEXT,
    "act_layer": TEXT,
    "label_names": NAMES,
    "label_descriptions": OBJECT,
    "pretrained_cfg": _PRETRAINED,
    "model_args": _ARGUMENTS,
    "model_type": TEXT,
    "vision_config": _TOWER,
    "hidden_act": TEXT,
    "pooler_act": TEXT,
    "image_size": SIZE,
    "num_attention_heads": WHOLE,
    "layer_norm_eps": NUMBER,
    "layerscale_value": NUMBER,
    "qkv_bias": FLAG,
    "key_bias": FLAG,
    "problem_type": TEXT,
    "id2label": LABELS,
}
_PREPROCESSOR: dict[str, Range | dict[str, Range]] = {
    "image_processor_type": TEXT,
    "feature_extractor_type": TEXT,
    "size": SIZE,
    "crop_size": SIZE,
    "resample": WORD,
    "image_mean": NUMBERS,
    "image_std": NUMBERS,
    "rescale_factor": POSITIVE,
    "do_resize": FLAG,
    "do_center_crop": FLAG,
    "do_rescale": FLAG,
    "do_normalize": FLAG,
}


def check_descriptions(file: WeightFile) -> None:
    """UserError for a value of a wrong kind in config.json or preprocessor_config.json, which are
    edited by hand and written by other versions. null stands for a value that is missing."""
    folder = file.path.parent
    _check(folder / "config.json", file.config, _CONFIG)
    _check(folder / "preprocessor_config.json", file.preprocessor, _PREPROCESSOR)


def _check(path: Path, values: Any, kinds: Mapping[str, Range | dict[str, Range]]) -> None:
    for name, kind in kinds.items():
        if (value := values.get(name)) is None:
            continue
        allowed = OBJECT if isinstance(kind, dict) else kind
        if not allowed.holds(value):
            raise UserError(f"{path}: {name}={shorten(value)} is not {allowed.text}")
        if isinstance(kind, dict):
            _check(path, value, kind)
