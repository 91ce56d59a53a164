"""Low-rank updates apart from the weights that they change: a directory of a few megabytes.

lora.safetensors holds what was trained, factors and head; config.json names the weights that it
belongs to, with a digest of those that are changed. Together they are the model of the run.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vit.checkpoints.exporting import NativeInfo
from vit.checkpoints.files import open_weights, read_json
from vit.checkpoints.local_paths import without_local_paths
from vit.checkpoints.lora import A, is_factor, merged_state
from vit.checkpoints.native import fingerprint
from vit.checkpoints.pretrained import load_pretrained
from vit.checkpoints.report import LoadReport
from vit.checkpoints.writing import write_safetensors
from vit.errors import UserError
from vit.models.zoo import Model
from vit.writing import atomic, write_json

FORMAT = "vit-lora"
FILE = "lora.safetensors"
VERSION = 1


def is_lora_directory(path: str | Path) -> bool:
    """Whether `write_lora` wrote the directory."""
    return (Path(path) / FILE).is_file()


def write_lora(
    directory: Path, state: Mapping[str, Tensor], trained: set[str], base: str, info: NativeInfo
) -> None:
    """Writes the trained tensors of a model with factors apart from the others.

    Args:
        directory: Where the files go; each appears whole or not at all.
        state: The model's state dict, factors included.
        trained: Names of the tensors that were trained.
        base: Where the model's weights came from. Of a local path only the last part is written.
        info: Class names, preprocessing, and what made the model.
    """
    values = {name: state[name].detach().cpu().contiguous() for name in sorted(trained)}
    description = {
        "format": FORMAT,
        "version": VERSION,
        "base": without_local_paths(base, "pretrained"),
        "base_sha256": _digest_of_changed(state, values),
        "classes": info.classes,
        "preprocess": info.preprocess,
        "extra": without_local_paths(info.extra),
        "sha256": fingerprint(values),
    }
    metadata = {"format": "pt", FORMAT: json.dumps(description, ensure_ascii=False)}
    with atomic(directory / FILE) as temporary:
        write_safetensors(temporary, values, metadata)
    write_json(directory / "config.json", description)


def load_lora(
    directory: str | Path, base: str | None = None, **options: Any
) -> tuple[Model, NativeInfo, LoadReport]:
    """The merged model of such a directory, with the weights that it belongs to.

    `base`: where those are, by default as the directory names them; `options` as for
    `load_pretrained`. UserError for other weights than those, and for damaged files.
    """
    path = Path(directory) / FILE
    said = read_json(path.with_name("config.json"))
    if said.get("format") != FORMAT or said.get("version") != VERSION:
        raise UserError(f"{path.with_name('config.json')} does not describe {path}")
    file = open_weights(path)
    values = {name: file.read(name) for name in file.shapes}
    if fingerprint(values) != said.get("sha256"):
        raise UserError(f"{path} is damaged: its tensors are not those that were saved")
    source = base if base is not None else said.get("base")
    if not isinstance(source, str):
        raise UserError(f"{directory} does not say which weights it changes; name them with --base")
    try:
        model, report = load_pretrained(source, **{**_size(said), **options}, **_outputs(values))
    except UserError as error:
        if base is not None:
            raise
        raise UserError(
            f"{directory} changes the weights {source!r}; say where they are with --base ({error})"
        ) from error
    state = model.state_dict()
    missing = {n.removesuffix(A) + "weight" for n in values if n.endswith(f".{A}")} - set(state)
    if missing or _digest_of_changed(state, values) != said.get("base_sha256"):
        raise UserError(f"{source} is not what {directory} was trained on: other weights")
    model.load_state_dict(merged_state({**state, **values}))
    report.head, report.reinitialised = "", []
    info = NativeInfo(said.get("classes"), said.get("preprocess"), dict(said.get("extra") or {}))
    report.classes, report.preprocess = info.classes, info.preprocess
    return model, info, report


def _digest_of_changed(state: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> str:
    """SHA-256 of the weights that have factors; a resized position table may differ in last bits"""
    layers = [name.removesuffix(A) for name in values if is_factor(name) and name.endswith(A)]
    names = [f"{layer}weight" for layer in layers]
    return fingerprint({name: state[name].detach().cpu().contiguous() for name in names})


def _size(said: Mapping[str, Any]) -> dict[str, Any]:
    size = (said.get("preprocess") or {}).get("image_size")
    return {} if size is None else {"image_size": tuple(size)}


def _outputs(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """The number of classes, by the trained head."""
    head = values.get("head.weight")
    return {} if head is None else {"num_classes": len(head)}
