"""Hugging Face's BiT. Source: transformers 5.23, models/bit/modeling_bit.py."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vit.errors import UserError
from vit.extensions.formats.exporting import arithmetic_notes
from vit.extensions.formats.facts import count_layers
from vit.extensions.formats.layout import SAME, Op, Rule, bound, exported
from vit.extensions.formats.preprocessing import from_huggingface, preparation
from vit.extensions.huggingface.labels import label_kind, labels, names_in
from vit.models.config import ROOT_CHANNELS, ResNetConfig
from vit.weights.building import build_empty
from vit.weights.formats import Recognised
from vit.weights.weight_file import WeightFile

_ROOT = "embedder.convolution.weight"
_LINEAR = Op(lambda t: t[:, :, None, None], lambda t: (t[:, :, 0, 0],))
"""Their head is a matrix, ours a 1x1 convolution."""
# Fields of config.json and the only value that is BiT's architecture; it is written as well.
_FIXED = {
    "layer_type": "preactivation",
    "global_padding": None,
    "hidden_act": "relu",
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,
}


def matches(file: WeightFile) -> bool:
    return any(key.endswith(_ROOT) for key in file.shapes)


def _rule(ours: str, prefix: str) -> Rule:
    if ours.startswith("head.fc."):
        op = _LINEAR if ours.endswith("weight") else SAME
        return Rule(ours, (ours.replace("head.fc.", "classifier.1."),), op)
    theirs = re.sub(r"^stages\.(\d+)\.blocks\.", r"encoder.stages.\1.layers.", ours)
    return Rule(ours, (prefix + theirs.replace("stem.conv.", "embedder.convolution."),))


def recognise(file: WeightFile) -> Recognised:
    """A Hugging Face BiT as our ResNet. UserError where config.json describes another ResNet."""
    for name, usual in _FIXED.items():
        if (value := file.config.get(name, usual)) != usual:
            raise UserError(f"{file.path}: {name}={value!r} is not BiT's {usual!r}")
    prefix = next(key for key in file.shapes if key.endswith(_ROOT)).removesuffix(_ROOT)
    layers = f"{prefix}encoder.stages."
    stages = range(count_layers(file.shapes, layers))
    root, in_channels, _, _ = file.shapes[prefix + _ROOT]
    config = ResNetConfig(
        in_channels=in_channels,
        num_classes=file.shapes.get("classifier.1.weight", (0,))[0],
        depths=tuple(count_layers(file.shapes, f"{layers}{s}.layers.") for s in stages),
        width_factor=root // ROOT_CHANNELS,
        ws_mode="timm",
    )
    names = build_empty(config).state_dict()
    tensors, used = bound(file, [_rule(name, prefix) for name in names])
    assumed = "there is no config.json: BiT's own groups, activation, padding and strides"
    return Recognised(
        format="Hugging Face",
        config=config,
        tensors=tensors,
        used=used,
        classes=names_in(file.config, config.num_classes),
        **preparation(from_huggingface, file.preprocessor, config.size),
        extra=label_kind(file.config, config.num_classes),
        notes=[] if file.config else [assumed],
    )


def write(
    config: ResNetConfig, state: Mapping[str, Tensor], classes: list[str] | None
) -> tuple[dict[str, Tensor], dict[str, Any], list[str]]:
    """Tensors under the hub's names, config.json, and what the library computes differently."""
    prefix = "bit." if config.num_classes else ""
    tensors = exported(state, [_rule(name, prefix) for name in state])
    values: dict[str, object] = {
        "architectures": ["BitForImageClassification" if config.num_classes else "BitModel"],
        "model_type": "bit",
        "num_channels": config.in_channels,
        "embedding_size": config.root_channels,
        "hidden_sizes": config.stage_channels,
        "depths": list(config.depths),
        **_FIXED,
        **labels(config.num_classes, classes),
    }
    return tensors, values, arithmetic_notes("transformers", config, ws_mode="timm")
