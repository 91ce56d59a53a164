"""Our own format: model.safetensors and config.json in one directory.

config.json says everything needed to use the model: architecture, class names, preprocessing, and
what made it. The same description is in the header of model.safetensors, so that the file alone is
enough, and so that a crash between the two renames cannot pair one model with another's words.
A SHA-256 of the tensors is checked whenever they are loaded.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.checkpoints.building import build_empty
from vit.checkpoints.described import VERSION, checked
from vit.checkpoints.exporting import Export, NativeInfo
from vit.checkpoints.files import WeightFile, open_weights, parse_json
from vit.checkpoints.layout import ModelConfig, Recognised, Rule, bound, listed
from vit.checkpoints.local_paths import without_local_paths
from vit.checkpoints.writing import memory_of, write_safetensors
from vit.errors import UserError
from vit.writing import atomic, write_json

FORMAT = "vit"
WEIGHTS = "model.safetensors"
_EDITABLE = ("classes", "preprocess")
"""Of config.json; all else is read from the header of the weights."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""In which a model can compute."""


def save_native(
    directory: str | Path,
    model: nn.Module,
    *,
    classes: list[str] | None,
    preprocess: dict[str, Any] | None,
    extra: dict[str, Any],
) -> None:
    """Writes a model directory. Each file appears whole or not at all, also over an older one."""
    config: ModelConfig = model.config  # pyright: ignore[reportAssignmentType]
    write_native(
        Path(directory), config, model.state_dict(), NativeInfo(classes, preprocess, extra)
    )


def write_native(
    directory: Path, config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo
) -> list[Path]:
    """`save_native` for a state dict. Returns the files that it wrote."""
    if info.classes is not None and len(info.classes) != config.num_classes:
        raise UserError(f"{len(info.classes)} class names for num_classes={config.num_classes}")
    # Also undoes sharing: safetensors refuses tensors that overlap in memory.
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": config.to_dict(),
        "classes": info.classes,
        "preprocess": info.preprocess,
        "extra": without_local_paths(info.extra),
        "sha256": fingerprint(tensors),
    }
    # One line in the header, indented in config.json.
    compact = json.dumps(description, ensure_ascii=False, allow_nan=False)
    digest = hashlib.sha256(compact.encode()).hexdigest()
    metadata = {"format": "pt", FORMAT: compact, f"{FORMAT}_sha256": digest}
    with atomic(directory / WEIGHTS) as temporary:
        write_safetensors(temporary, tensors, metadata)
    write_json(directory / "config.json", description)
    return [directory / WEIGHTS, directory / "config.json"]


def write(config: ModelConfig, state: Mapping[str, Tensor], info: NativeInfo) -> Export:
    """A model directory of this package, which has a place for everything."""
    return Export(save=lambda target: write_native(target, config, state, info), multilabel=True)


def load_native(directory: str | Path) -> tuple[nn.Module, NativeInfo]:
    """A saved model in evaluation mode, with the dtype it was saved in, and its description.

    The tensors are memory-mapped: nothing is copied, and pages are read when they are needed.
    """
    file = open_weights(directory)
    if not matches(file):
        raise UserError(f"{directory} is no model of this package; {convert_command(directory)}")
    recognised = recognise(file)
    model = build_empty(recognised.config)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    if expected != file.shapes:
        differing = {n for n, shape in expected.items() if file.shapes.get(n) != shape}
        differing |= set(file.shapes) - set(expected)
        raise UserError(f"{file.path} does not fit its own config.json: {listed(differing)}")
    recognised.check()
    state = {name: read() for name, read in recognised.tensors.items()}
    for name, tensor in state.items():
        if tensor.dtype not in _DTYPES:
            raise UserError(f"{file.path} does not fit: {name} is of type {tensor.dtype}")
    model.load_state_dict(state, strict=True, assign=True)
    model.preprocess = recognised.preprocess or {}
    info = NativeInfo(recognised.classes, recognised.preprocess, recognised.extra, recognised.notes)
    return model.eval(), info


def convert_command(path: str | Path) -> str:
    """The command line, for a message, that makes a model directory of weights of another kind."""
    target = f"{Path(path).absolute().stem}_vit"
    return f"convert it: vit convert {shlex.quote(str(path))} {shlex.quote(target)} --to native"


def matches(file: WeightFile) -> bool:
    """Whether this package saved the file: by its description, as our names are also timm's."""
    return FORMAT in file.header or file.config.get("format") == FORMAT or file.vit is not None


def recognise(file: WeightFile) -> Recognised:
    """Our own file or Lightning checkpoint. Its `check` compares the SHA-256 of the tensors."""
    if file.vit is not None:
        values, path, notes = {"model": file.vit.get("config"), **file.vit}, file.path, []
        values["version"], label = VERSION, "Lightning checkpoint"
    else:
        (values, path, notes), label = _description(file), "vit"
    description = checked(values, path, file.shapes)
    if values.get("weights") == "ema":
        notes.append("these weights are the running average of the training's")
    tensors, used = bound(file, [Rule(name, (name,)) for name in file.shapes])
    digest = description.sha256
    return Recognised(
        format=label,
        config=description.config,
        tensors=tensors,
        used=used,
        classes=description.classes,
        preprocess=description.preprocess,
        notes=notes,
        extra=description.extra,
        check=lambda: _verify(file, digest) if digest is not None else None,
    )


def _description(file: WeightFile) -> tuple[dict[str, Any], Path, list[str]]:
    """What is said about the model, the file that says it, and notes."""
    beside = file.path.parent / "config.json"
    text = file.header.get(FORMAT, "")
    if not text:  # saved by another hand, with a config.json of ours
        return file.config, beside, []
    if hashlib.sha256(text.encode()).hexdigest() != file.header.get(f"{FORMAT}_sha256"):
        raise UserError(f"{file.path} is damaged: its header has changed since it was saved")
    header = parse_json(text, file.path)
    if header.get("sha256") is None:
        raise UserError(f"{file.path} is damaged: its header has no SHA-256 of the tensors")
    if header["sha256"] != file.config.get("sha256"):
        return header, file.path, []  # no config.json, or that of other weights
    if header.get("model") != file.config.get("model"):
        raise UserError(f"{beside} describes another model than the weights beside it")
    checked(file.config, beside, file.shapes)
    mine = {name: file.config[name] for name in _EDITABLE if name in file.config}
    edited = [name for name, value in mine.items() if value != header.get(name)]  # or damaged
    differ = f"{' and '.join(edited)} of {beside} differ from what was saved with the weights"
    return {**header, **mine}, beside, [differ] if edited else []


def _verify(file: WeightFile, expected: str) -> None:
    tensors = {name: file.read(name) for name in file.shapes}
    if fingerprint(tensors) != expected:
        raise UserError(
            f"{file.path} is damaged: its tensors do not have the SHA-256 they were saved with"
        )


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of contiguous CPU tensors, in order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(memory_of(tensor))
    return digest.hexdigest()
