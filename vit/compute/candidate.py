"""A model to compare: ours, with formulas, or torchvision's, with counted operations."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vit.compute.baselines import build_baseline, is_baseline, native_size
from vit.compute.flops import Work, counted, sized, work
from vit.compute.memory import Activations, TrainingMemory, activations, counted_activations
from vit.errors import UserError
from vit.models.config import ResNetConfig
from vit.models.zoo import ZOO, ModelConfig, build_model, canonical_name, model_config

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model at one image size."""

    name: str
    config: ModelConfig | None
    """None for torchvision's models."""
    image_size: tuple[int, int]
    """(height, width) in pixels."""
    num_classes: int

    @property
    def channels(self) -> int:
        """Channels of its images."""
        return 3 if self.config is None else self.config.in_channels

    def build(self) -> "nn.Module":
        """The model with fresh weights, on the default device."""
        if self.config is None:
            return build_baseline(self.name, self.image_size, self.num_classes)
        return build_model(self.config)

    @cached_property
    def work(self) -> Work:
        """Cost per image, by formula if there is one, otherwise by PyTorch's counter."""
        return self.counted if self.config is None else work(self.config)

    @cached_property
    def counted(self) -> Work:
        """Cost per image by PyTorch's counter."""
        return counted(self._empty(), self.image_size, self.channels)

    def memory(self, precision: str, *, checkpointing: bool = False) -> TrainingMemory | None:
        """Memory of a training step. None if the model does not support checkpointing."""
        kept: Activations
        if self.config is not None:
            kept = activations(self.config, precision, checkpointing=checkpointing)
        elif checkpointing:
            return None
        else:
            kept = counted_activations(self._empty(), self.image_size, precision)
        return TrainingMemory(params=self.work.params, precision=precision, activations=kept)

    def _empty(self) -> "nn.Module":
        import torch

        with torch.device("meta"):
            return self.build()


def candidate(
    name: str, image_size: tuple[int, int] | None = None, num_classes: int | None = None
) -> Candidate:
    """A named model, by default at its own size and with 1000 classes.

    UserError for an unknown name or a size that the patch size does not divide.
    """
    if is_baseline(name):
        size = native_size(name) if image_size is None else image_size
        classes = 1000 if num_classes is None else num_classes
        return Candidate(name=name.lower(), config=None, image_size=size, num_classes=classes)
    return from_config(canonical_name(name), model_config(name), image_size, num_classes)


def from_config(
    name: str,
    config: ModelConfig,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
) -> Candidate:
    """A model of this package, from its configuration."""
    try:
        config = sized(config, image_size, num_classes)
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    return Candidate(
        name=name, config=config, image_size=config.size, num_classes=config.num_classes
    )


def find_model(
    name: str, size: tuple[int, int] | None = None, num_classes: int | None = None
) -> Candidate:
    """A model by name, or the one in a run, a directory or a file of weights, or at an address.

    For published weights (NAME.TAG) the table is enough: nothing is downloaded.
    """
    if "://" not in name and not Path(name).expanduser().exists():
        from vit.checkpoints.published import means_weights, named

        row = named(name) if means_weights(name) and not is_baseline(name) else None
        if row is None:
            return candidate(name, size, num_classes)
        classes = row.outputs if num_classes is None else num_classes
        return from_config(row.name, model_config(row.architecture), size or row.size, classes)
    from vit.checkpoints.pretrained import inspect_pretrained

    config = inspect_pretrained(str(Path(name).expanduser()) if "://" not in name else name).config
    return from_config(name, config, size, num_classes)


SHAPE = ("width", "depth", "mlp_dim", "num_heads", "patch_size", "stem_depths")
RESNET_SHAPE = ("depths", "width_factor")


def describe(config: ModelConfig) -> str:
    """Name of an architecture, or its sizes: 'vit 128x6 /4' is width 128, depth 6, patch 4."""
    shape = RESNET_SHAPE if isinstance(config, ResNetConfig) else SHAPE
    for name, entry in ZOO.items():
        named = entry.config
        if isinstance(named, type(config)) and all(
            getattr(named, field) == getattr(config, field) for field in shape
        ):
            return name
    if isinstance(config, ResNetConfig):
        return f"bit {'-'.join(map(str, config.depths))} x{config.width_factor}"
    kind = "vit" if config.stem_depths is None else "hybrid"
    return f"{kind} {config.width}x{config.depth} /{config.patch_size}"
