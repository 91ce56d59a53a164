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
from vit.checkpoints.described import completed
from vit.checkpoints.hub import fetch, is_address
from vit.checkpoints.layout import ModelConfig
from vit.checkpoints.native import NativeInfo, write_native
from vit.checkpoints.preprocessing import to_huggingface
from vit.checkpoints.pretrained import inspect_pretrained, load_pretrained
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


def convert(
    source: str | Path,
    destination: str | Path,
    to: Format,
    *,
    overwrite: bool = False,
    **options: Any,
) -> Conversion:
    """Writes the model in `source` for another library; `options` as for `load_pretrained`.

    `overwrite`: replace what the destination holds. UserError where that library has no such
    model, or the destination is of the wrong kind, a run, or holds a model without `overwrite`.
    """
    if to not in get_args(Format):
        raise UserError(f"format {to!r} is not one of {', '.join(get_args(Format))}")
    target = Path(destination)
    suffix = _SUFFIX.get(to)
    if suffix is not None and target.suffix != suffix:
        raise UserError(f"{to} wants one file: name it {target.with_suffix(suffix)}")
    if suffix is None and (target.is_file() or target.suffix in (".pth", ".npz", ".safetensors")):
        raise UserError(f"{to} wants a directory, and {target} is a file")
    _check_free(target, overwrite)
    path = fetch(str(source)) if is_address(source) else source
    model, report = load_pretrained(path, **options)
    report.source = str(source)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    known = inspect_pretrained(path, **options).extra
    extra = {"source": str(source), **known}
    info = NativeInfo(report.classes, report.preprocess, extra)
    written, notes = _write(to, target, model.config, state, info)
    if extra.get("multilabel") and to in ("timm", "torchvision", "google"):
        notes.append(f"{to} has no word for several labels an image: take sigmoids, not softmax")
    return Conversion(loaded=report, written=[str(path) for path in written], notes=notes)


_IN_MODEL_DIRECTORY = (
    "model.safetensors",
    "pytorch_model.bin",
    "model.safetensors.index.json",
    "config.json",
    "preprocessor_config.json",
)


def _check_free(target: Path, overwrite: bool) -> None:
    """Refuses a destination that holds something; nothing has been read or written yet."""
    if (target / "config.yaml").exists() or (target / "model" / "config.json").exists():
        raise UserError(f"{target} is a run, which a model would hide in; name another directory")
    held = [target / name for name in _IN_MODEL_DIRECTORY] if target.is_dir() else [target]
    held = [path for path in held if path.exists()]
    if held and not overwrite:
        names = ", ".join(path.name for path in held)
        where = f"{target} holds a model ({names})" if target.is_dir() else f"{target} is there"
        raise UserError(f"{where}; add --overwrite to replace it, or name another destination")


def _write(
    to: Format, target: Path, config: ModelConfig, state: dict[str, Tensor], info: NativeInfo
) -> tuple[list[Path], list[str]]:
    if to == "native":
        write_native(target, config, state, info)
        return _alone(target, [target / "model.safetensors", target / "config.json"]), []
    if to == "timm":
        preprocess = (
            completed(info.preprocess, config.size) if info.preprocess is not None else None
        )
        tensors, values, notes = timm_export.write(config, state, info.classes, preprocess)
        return _save_directory(target, tensors, {"config.json": values}), notes
    if to == "huggingface":
        return _write_huggingface(target, config, state, info)
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
) -> tuple[list[Path], list[str]]:
    notes = []
    if isinstance(config, ViTConfig):
        tensors, values = huggingface_export.write(config, state, info.classes)
        if not config.num_classes and config.pool != "cls":
            notes.append(
                f"{values['architectures'][0]} gives the class token as pooler_output, this model "
                f"gives pool={config.pool!r}; the tokens are the same"
            )
    else:
        tensors, values = huggingface_bit.write(config, state, info.classes)
    if info.extra.get("multilabel"):
        values["problem_type"] = "multi_label_classification"
    files = {"config.json": values}
    if info.preprocess is not None:
        kind = values["model_type"]
        files["preprocessor_config.json"] = to_huggingface(
            completed(info.preprocess, config.size), kind
        )
    return _save_directory(target, tensors, files), notes


def _save_directory(
    target: Path, tensors: dict[str, Tensor], files: dict[str, dict[str, Any]]
) -> list[Path]:
    with atomic(target / "model.safetensors") as temporary:
        write_safetensors(temporary, tensors, {"format": "pt"})
    for name, values in files.items():
        write_json(target / name, values)
    return _alone(target, [target / "model.safetensors", *(target / name for name in files)])


def _alone(target: Path, written: list[Path]) -> list[Path]:
    """Removes what an overwritten model has left, which would be taken for the new one's."""
    for name in _IN_MODEL_DIRECTORY:
        if target / name not in written:
            (target / name).unlink(missing_ok=True)
    return written


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
