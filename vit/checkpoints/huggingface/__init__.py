"""Hugging Face's ViT, DeiT, DINOv2 (with and without registers), DINOv3 and BiT, both ways."""

from collections.abc import Mapping

from torch import Tensor

from vit.checkpoints.class_names import THRESHOLDS
from vit.checkpoints.exporting import Export, NativeInfo, directory
from vit.checkpoints.files import WeightFile
from vit.checkpoints.huggingface import bit, reading, writing
from vit.checkpoints.layout import ModelConfig, Recognised
from vit.checkpoints.preprocessing import rounding_note, to_huggingface
from vit.models.config import ResNetConfig


def matches(file: WeightFile) -> bool:
    return reading.matches(file) or bit.matches(file)


def recognise(file: WeightFile) -> Recognised:
    reading.check_family(file)
    return (reading if reading.matches(file) else bit).recognise(file)


def write(config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
    """A directory for `from_pretrained`. UserError where no model of the library is the same."""
    if isinstance(config, ResNetConfig):
        tensors, values, notes = bit.write(config, state, info.classes)
    else:
        tensors, values, notes = writing.write(config, state, info.classes)
    if info.extra.get("regression"):
        values["problem_type"] = "regression"
    if info.extra.get("multilabel"):
        values["problem_type"] = "multi_label_classification"
        if info.extra.get("thresholds") is not None:
            values[THRESHOLDS] = info.extra["thresholds"]
    files = {"config.json": values}
    if info.preprocess is not None:
        files["preprocessor_config.json"] = to_huggingface(info.preprocess, values["model_type"])
        notes += rounding_note("transformers", info.preprocess, "floor")
    return Export(save=directory(tensors, files), notes=notes, multilabel=True)
