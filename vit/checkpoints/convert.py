"""From any layout that is read to any that is written, and the difference between two files.

Directories are written for ours, timm's and Hugging Face's; single files for torchvision (.pth) and
Google (.npz). Every file appears whole or not at all.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vit.checkpoints import (
    google,
    huggingface_bit,
    huggingface_export,
    timm_export,
    torchvision,
)
from vit.checkpoints.layout import ModelConfig
from vit.checkpoints.native import NativeInfo, write_native
from vit.checkpoints.preprocessing import to_huggingface
from vit.checkpoints.pretrained import load_pretrained
from vit.checkpoints.report import LoadReport
from vit.checkpoints.writing import write_safetensors
from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.writing import atomic, write_json

Format = Literal["native", "timm", "torchvision", "huggingface", "google"]
_SUFFIX = {"torchvision": ".pth", "google": ".npz"}


@dataclass(kw_only=True)
class Conversion:
    """What was written, and what the reader should know."""

    loaded: LoadReport
    written: list[str]
    notes: list[str] = field(default_factory=list)
    """Where the other library's arithmetic differs from the model's."""


def convert(source: str | Path, destination: str | Path, to: Format, **options: Any) -> Conversion:
    """Writes the model in `source` for another library; `options` as for `load_pretrained`.

    UserError where that library has no such model, or the destination is of the wrong kind.
    """
    if to not in get_args(Format):
        raise UserError(f"format {to!r} is not one of {', '.join(get_args(Format))}")
    target = Path(destination)
    suffix = _SUFFIX.get(to)
    if suffix is not None and target.suffix != suffix:
        raise UserError(f"{to} wants one file: name it {target.with_suffix(suffix)}")
    if suffix is None and (target.is_file() or target.suffix in (".pth", ".npz", ".safetensors")):
        raise UserError(f"{to} wants a directory, and {target} is a file")
    model, report = load_pretrained(source, **options)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    info = NativeInfo(report.classes, report.preprocess, {"source": str(source)})
    written, notes = _write(to, target, model.config, state, info)
    return Conversion(loaded=report, written=[str(path) for path in written], notes=notes)


def _write(
    to: Format, target: Path, config: ModelConfig, state: dict[str, Tensor], info: NativeInfo
) -> tuple[list[Path], list[str]]:
    if to == "native":
        write_native(target, config, state, info)
        return [target / "model.safetensors", target / "config.json"], []
    if to == "timm":
        tensors, values, notes = timm_export.write(config, state, info.classes, info.preprocess)
        return _save_directory(target, tensors, {"config.json": values}), notes
    if to == "huggingface":
        return _write_huggingface(target, config, state, info), []
    if to == "google":
        tensors, notes = google.write(config, state)
        _save_npz(target, tensors)
        return [target], notes
    if isinstance(config, ResNetConfig):
        raise UserError("torchvision has no BiT; try --to timm")
    tensors, notes = torchvision.write(config, state)
    with atomic(target) as temporary:
        torch.save(tensors, temporary)
    return [target], notes


def _write_huggingface(
    target: Path, config: ModelConfig, state: dict[str, Tensor], info: NativeInfo
) -> list[Path]:
    if isinstance(config, ViTConfig):
        tensors, values = huggingface_export.write(config, state, info.classes)
    else:
        tensors, values = huggingface_bit.write(config, state, info.classes)
    files = {"config.json": values}
    if info.preprocess is not None:
        kind = values["model_type"]
        files["preprocessor_config.json"] = to_huggingface(info.preprocess, kind)
    return _save_directory(target, tensors, files)


def _save_directory(
    target: Path, tensors: dict[str, Tensor], files: dict[str, dict[str, Any]]
) -> list[Path]:
    with atomic(target / "model.safetensors") as temporary:
        write_safetensors(temporary, tensors, {"format": "pt"})
    for name, values in files.items():
        write_json(target / name, values)
    return [target / "model.safetensors", *(target / name for name in files)]


def _save_npz(target: Path, tensors: dict[str, Tensor]) -> None:
    import numpy as np  # the format is numpy's

    with atomic(target) as temporary, temporary.open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{k: t.numpy() for k, t in tensors.items()})


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outputs of two files for the same random images."""

    image_size: tuple[int, int]
    largest_difference: float
    """Largest absolute difference of the logits, or of the features of backbones."""
    largest_output: float
    """Largest absolute output of the first file, to judge the difference by."""

    @property
    def relative(self) -> float:
        """Largest difference over largest output."""
        return self.largest_difference / max(self.largest_output, 1e-30)


def compare(first: str | Path, second: str | Path, **options: Any) -> Comparison:
    """Runs two files on two random images in double precision, at the first one's image size."""
    one, _ = load_pretrained(first, **options)
    size = one.config.size
    other, _ = load_pretrained(second, **{**options, "image_size": size})
    channels = one.config.in_channels
    if other.config.in_channels != channels:
        raise UserError(f"{first} takes {channels} channels, {second} {other.config.in_channels}")
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, channels, *size, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        a, b = (model.double().eval()(images) for model in (one, other))
    if a.shape != b.shape:
        raise UserError(f"{first} has {a.shape[1]} outputs, {second} {b.shape[1]}")
    return Comparison(
        image_size=size,
        largest_difference=(a - b).abs().max().item(),
        largest_output=a.abs().max().item(),
    )
