"""timm's ViT, DeiT, DeiT-III, DINOv2, DINOv3, hybrids and BiT, read and written."""

from collections.abc import Mapping

from torch import Tensor
from typing_extensions import override

from vit.errors import UserError
from vit.extensions.formats import timm_reading as reading
from vit.extensions.formats import timm_writing as writing
from vit.extensions.formats.descriptions import check_descriptions
from vit.extensions.formats.exporting import Export, Writable
from vit.extensions.formats.refusals import refused
from vit.extensions.formats.timm_families import architecture_of
from vit.models.zoo import ModelConfig
from vit.weights.formats import Recognised
from vit.weights.native import NativeInfo
from vit.weights.weight_file import WeightFile


class Timm(Writable):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        return reading.matches(file)

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        check_descriptions(file)
        return reading.recognise(file)

    @override
    def write(self, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
        return writing.write(config, state, info)

    @override
    def refuse(self, file: WeightFile) -> UserError | None:
        """For every architecture that config.json names."""
        check_descriptions(file)
        architecture = architecture_of(file)
        return None if architecture is None else refused("timm", architecture)
