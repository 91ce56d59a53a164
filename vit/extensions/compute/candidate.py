"""A model to compare: ours or torchvision's."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models

from vit.errors import UserError, did_you_mean
from vit.extensions.compute.flops import Work, counted
from vit.extensions.compute.memory import Activations, counted_activations
from vit.models import zoo
from vit.models.config import ResNetConfig
from vit.preprocessing import Size
from vit.weights.building import build_empty
from vit.weights.names import means_weights, named
from vit.weights.pretrained import inspect_pretrained

PREFIX = "torchvision/"
SEVERAL_OUTPUTS = ("googlenet", "inception_v3")
"""torchvision's networks that need special losses for training."""


Adapt = Callable[[Any], object]
"""Leaves a part of a network to train, in place."""


def head_alone(network: nn.Module) -> None:
    """Freezes all but the head."""
    network.requires_grad_(False)
    for layer in getattr(network, "head_layers", []):  # torchvision's have none
        layer.requires_grad_(True)


@dataclass(frozen=True)
class Candidate:
    """A model at one image size."""

    name: str
    config: zoo.ModelConfig | None
    """None for torchvision's models."""
    image_size: tuple[int, int]
    """(height, width) in pixels."""
    num_classes: int

    @property
    def channels(self) -> int:
        """Channels of its images."""
        return 3 if self.config is None else self.config.in_channels

    def build(self) -> nn.Module:
        """The model with fresh weights, on the default device."""
        if self.config is None:
            return build_baseline(self.name, self.image_size, self.num_classes)
        return zoo.build_model(self.config)

    @cached_property
    def work(self) -> Work:
        """Cost per image."""
        return counted(self.empty(), self.image_size, self.channels)

    def adapted(self, adapt: Adapt) -> Work:
        """Cost per image of a model of which `adapt` leaves a part to train."""
        adapt(network := self.empty())
        return counted(network, self.image_size, self.channels)

    def activations(self, precision: str, *, checkpointing: bool = False) -> Activations | None:
        """Memory of a training step on a GPU. None if the model does not support checkpointing."""
        if checkpointing and self.config is None:
            return None
        settings = self.image_size, precision, self.channels
        whole, model = counted_activations(self.empty(), *settings), self.empty()
        if not checkpointing:
            return replace(whole, recomputed=0)
        model.activation_checkpointing = True  # pyright: ignore[reportArgumentType]
        return replace(counted_activations(model, *settings), recomputed=whole.recomputed)

    def empty(self) -> nn.Module:
        """The model on the meta device."""
        if self.config is not None:
            return build_empty(self.config)
        with torch.device("meta"):
            return self.build()


def is_baseline(name: str) -> bool:
    return name.lower().startswith(PREFIX)


def baseline_name(name: str) -> str:
    """The name without torchvision/. UserError for an unknown one."""
    names = set(models.list_models(module=models)) - set(SEVERAL_OUTPUTS)
    short = name[len(PREFIX) :].lower()
    if short not in names:
        full = [PREFIX + n for n in sorted(names)]
        hint = did_you_mean(name, full) or "; such as torchvision/resnet50, torchvision/vit_b_16"
        raise UserError(f"unknown model {name!r}{hint}")
    return short


def native_size(name: str) -> tuple[int, int]:
    """(height, width) at which a baseline was published, in pixels."""
    short = baseline_name(name)
    published = next(iter(models.get_model_weights(short)), None)
    side = 224 if published is None else published.transforms.keywords["crop_size"]
    return side, side


def build_baseline(name: str, image_size: tuple[int, int], num_classes: int = 1000) -> nn.Module:
    """A torchvision classifier with fresh weights, for images of (height, width) pixels."""
    short = baseline_name(name)
    options = {"weights": None, "num_classes": num_classes}
    if short.startswith("maxvit"):
        options["input_size"] = image_size
    if short.startswith("vit_"):
        (height, width), side = image_size, int(short[-2:])
        if height != width or height % side:
            raise UserError(
                f"{name} takes square images of a multiple of {side} pixels, not {height}x{width}"
            )
        options["image_size"] = height
    return models.get_model_builder(short)(**options)


def from_config(
    name: str,
    config: zoo.ModelConfig,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
) -> Candidate:
    """A model of this package. UserError for an image size that its patches do not divide."""
    changes = {"image_size": image_size, "num_classes": num_classes}
    changes = {field: value for field, value in changes.items() if value is not None}
    try:
        config = zoo.config_from_dict({**config.to_dict(), **changes})
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    return Candidate(name, config, config.size, config.num_classes)


def find_model(
    name: str, size: Size | None = None, num_classes: int | None = None, usual: Size | None = None
) -> Candidate:
    """A model by name, or the one in a run, a directory or a file of weights, or at an address.

    `size` and `num_classes`: its own by default; `usual`: the size of one without weights.
    Published weights (NAME.TAG) are not downloaded.
    """
    if "://" in name or Path(name).expanduser().exists():
        place = name if "://" in name else str(Path(name).expanduser())
        return from_config(name, inspect_pretrained(place).config, size, num_classes)
    if is_baseline(name):
        size = size or usual or native_size(name)
        return Candidate(name.lower(), None, size, num_classes or 1000)
    row = named(name) if means_weights(name) else None
    if row is not None:
        config = zoo.model_config(row.architecture)
        return from_config(row.name, config, size or row.size, num_classes or row.outputs)
    return from_config(zoo.canonical_name(name), zoo.model_config(name), size or usual, num_classes)


SHAPE = ("width", "depth", "mlp_dim", "num_heads", "patch_size", "stem_depths", "depths",
         "width_factor")  # fmt: skip
KINDS = ("distillation_token", "num_registers", "rotary")


def describe(config: zoo.ModelConfig) -> str:
    """Name of an architecture, or its sizes: 'vit 128x6 /4' is width 128, depth 6, patch 4."""

    def shape(config: zoo.ModelConfig) -> list[object]:
        values = [getattr(config, name, None) for name in (*SHAPE, *KINDS)]
        is_gated = getattr(config, "activation", None) == "swiglu"
        return [*values, is_gated, getattr(config, "layer_scale", None) is not None]

    for name, entry in zoo.ZOO.items():
        if shape(entry.config) == shape(config):
            return name
    if isinstance(config, ResNetConfig):
        return f"bit {'-'.join(map(str, config.depths))} x{config.width_factor}"
    kind = "vit" if config.stem_depths is None else "hybrid"
    return f"{kind} {config.width}x{config.depth} /{config.patch_size}"
