"""Hugging Face's ViT, DeiT, DINOv2 (with and without registers), DINOv3 and BiT, both ways."""

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats import huggingface_bit as bit
from vit.extensions.formats import huggingface_reading as reading
from vit.extensions.formats import huggingface_writing as writing
from vit.extensions.formats.descriptions import check_descriptions
from vit.extensions.formats.exporting import Export, Writable, directory
from vit.extensions.formats.huggingface_labels import THRESHOLDS
from vit.extensions.formats.preprocessing import rounding_note, to_huggingface
from vit.models.config import ResNetConfig
from vit.models.zoo import ModelConfig
from vit.weights.formats import Recognised
from vit.weights.native import NativeInfo
from vit.weights.weight_file import WeightFile


class HuggingFace(Writable):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        return reading.matches(file) or bit.matches(file)

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        check_descriptions(file)
        if (error := reading.refusal(file)) is not None:
            raise error
        return (reading if reading.matches(file) else bit).recognise(file)

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        """A directory for `from_pretrained`. UserError where the library has no such model."""
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
            files["preprocessor_config.json"] = to_huggingface(
                info.preprocess, values["model_type"]
            )
            notes += rounding_note("transformers", info.preprocess, "floor")
        return Export(save=directory(tensors, files), notes=notes, multilabel=True)

    @override
    def refuse(self, file: WeightFile) -> UserError | None:
        """For every family that config.json names, and for a tensor that none of ours has."""
        check_descriptions(file)
        return reading.refusal(file)
