"""Our own format: model.safetensors and config.json in one directory.

config.json has architecture, class names, preprocessing, and the recipe. The header of
model.safetensors has the same, so that the file alone is enough, and a crash between the two
renames cannot pair one model with another's description. Loading checks a SHA-256 of the tensors.
"""

import hashlib
import json
import os
import re
from functools import partial
from pathlib import Path

from typing_extensions import override

from vit.console import is_first_process
from vit.errors import UserError, shorten
from vit.models.fields import JsonObject, is_list, is_object
from vit.models.zoo import Model, ModelConfig, config_from_dict
from vit.preprocessing import Preprocess
from vit.weights.formats import Format, Recognised
from vit.weights.heads import check_labels, check_names
from vit.weights.sealed import fingerprint, is_sharded, write_safetensors
from vit.weights.weight_file import FORMAT, WeightFile, open_weights, parse_json
from vit.writing import atomic, write_json

OURS = (FORMAT, "Lightning checkpoint")
"""Names of the formats of this package in the report of a load."""
VERSION = 1
"""Version of the description; a file of another version is refused."""
WEIGHTS = "model.safetensors"
_EDITABLE = ("classes", "preprocess")
"""Fields of config.json that may be edited; the rest is read from the header of the weights."""
_PATH_OPTIONS = ("root", "pretrained", "run_dir", "resume", "source")
"""Options and entries whose values are paths, also where they are relative."""
_ABSOLUTE = re.compile(
    r"(?:/|~([a-z_][\w.-]*)?([/\\]|$)|\.\.[/\\]|[a-z]:[/\\]|\\\\|file://)", re.IGNORECASE
)
_HOME = re.compile(r"~[^/\\]*|.*[/\\](home|Users)[/\\]+[^/\\]+")
"""Paths whose last part is the name of a user."""
_ADDRESS = re.compile(
    r"(?!file:)([a-z][a-z0-9+.-]*://)(?:[^/?#]*@)?([^?#]*)[^#]*(#sha256=\w+)?.*", re.I
)
"""Scheme, place and digest of an address."""


def save_native(
    directory: str | Path,
    model: Model,
    *,
    classes: list[str] | None,
    preprocess: JsonObject | None,
    extra: JsonObject,
) -> list[Path]:
    """Writes a model directory, and returns its files. Each file appears whole or not at all, also
    over an older one.

    `classes`: names in the order of the logits. `preprocess`: `Preprocess.to_dict()`. `extra`:
    recipe, metrics, source, in plain JSON types; of local paths only the last part is saved. Every
    process of a sharded model calls it, and the first one writes.
    """
    check_names(classes, model.config.num_classes)
    directory, state = Path(directory), model.state_dict()
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.config.to_dict(),
        "classes": classes,
        "preprocess": preprocess,
        "extra": without_local_paths({**extra, **model.inherited}),
        "sha256": fingerprint(state),
    }
    # One line in the header, indented in config.json.
    compact = json.dumps(description, ensure_ascii=False, allow_nan=False)
    digest = hashlib.sha256(compact.encode()).hexdigest()
    metadata = {"format": "pt", FORMAT: compact, f"{FORMAT}_sha256": digest}
    if any(map(is_sharded, state.values())) and not is_first_process():
        write_safetensors(Path(os.devnull), state, metadata)  # takes part in gathering
        return []
    with atomic(directory / WEIGHTS) as temporary:
        write_safetensors(temporary, state, metadata)
    write_json(directory / "config.json", description)
    return [directory / WEIGHTS, directory / "config.json"]


class Native(Format):
    """Row of the table `formats`."""

    @override
    def matches(self, file: WeightFile) -> bool:
        """True for a file that this package saved, by its description."""
        return FORMAT in file.header or file.config.get("format") == FORMAT or file.vit is not None

    @override
    def recognise(self, file: WeightFile) -> Recognised:
        """Our own file or Lightning checkpoint. Its `check` compares the SHA-256 of the tensors."""
        notes: list[str] = []
        if file.vit is not None:
            values, path, label = {"model": file.vit.get("config"), **file.vit}, file.path, OURS[1]
        else:
            (values, path, notes), label = _description(file), OURS[0]
        config, preprocess, extra = _checked(values, path)
        if file.vit is not None and config.num_classes:
            extra.update(_measured(file, notes))
        checkpoint, digest = extra.get("checkpoint"), values.get("sha256")
        averaged = is_object(checkpoint) and checkpoint.get("weights") == "ema"
        return Recognised(
            format=label,
            config=config,
            tensors={name: partial(file.read, name) for name in file.shapes},
            used=set(file.shapes),
            classes=values.get("classes"),
            preprocess=preprocess,
            notes=notes,
            extra=extra,
            average=file.average or averaged,
            check=None if digest is None else partial(_verify, file, digest),
        )


def _measured(file: WeightFile, notes: list[str]) -> JsonObject:
    """Temperature and thresholds of a run's model, if it has the weights of this checkpoint of the
    run; else a note."""
    folder = file.path.resolve().parent.parent / "model"
    if (folder / WEIGHTS).is_file():
        values, _, _ = _description(open_weights(folder))
        if values.get("sha256") == fingerprint({name: file.read(name) for name in file.shapes}):
            extra: JsonObject = values.get("extra") or {}
            return {key: extra[key] for key in ("temperature", "thresholds") if key in extra}
    notes.append("no temperature was fitted to the probabilities of this checkpoint")
    return {}


def _description(file: WeightFile) -> tuple[JsonObject, Path, list[str]]:
    """The description, the file that has it, and notes."""
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
    _checked(file.config, beside)
    current = {name: file.config[name] for name in _EDITABLE if name in file.config}
    edited = [name for name, value in current.items() if value != header.get(name)]  # or damaged
    note = f"{' and '.join(edited)} of {beside} differ from what was saved with the weights"
    return {**header, **current}, beside, [note] if edited else []


def _checked(values: JsonObject, path: Path) -> tuple[ModelConfig, JsonObject | None, JsonObject]:
    """Configuration, preprocessing and `extra` of the description in `path`. UserError names the
    path and the first value that is wrong."""
    try:
        if values.get("version", VERSION) != VERSION:
            raise UserError(
                f"version={shorten(values['version'])} is not {VERSION}: it was saved by another "
                "version of vit; upgrade vit"
            )
        config = config_from_dict(values.get("model"))
        check_names(values.get("classes"), config.num_classes)
        preprocess: JsonObject | None = values.get("preprocess")
        extra: object = values.get("extra") or {}
        if preprocess is not None:
            if is_object(preprocess):
                preprocess = {"image_size": [*config.size], **preprocess}
            preprocess = Preprocess.from_dict(preprocess).to_dict()
        if not is_object(extra):
            raise UserError(f"extra={shorten(extra)} is not an object")
        check_labels(extra, config.num_classes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return config, preprocess, extra


def _verify(file: WeightFile, expected: str) -> None:
    tensors = {name: file.read(name) for name in file.shapes}
    if fingerprint(tensors) != expected:
        raise UserError(f"{file.path} is damaged: its tensors have changed since they were saved")


def without_local_paths(value: object, option: str = "") -> object:
    """A copy of plain JSON values in which a local path is only its last part, and an address has
    no user, password and query, which may hold a signature.

    `option`: the key of the value.
    """
    if is_object(value):
        return {key: without_local_paths(item, str(key)) for key, item in value.items()}
    if is_list(value):
        return [without_local_paths(item, option) for item in value]
    if not isinstance(value, str):
        return value
    text = value.strip().rstrip("/\\")
    if address := _ADDRESS.fullmatch(text):
        return "".join(part or "" for part in address.groups())
    if _ABSOLUTE.match(text) or (option in _PATH_OPTIONS and re.search(r"[/\\]", text)):
        return "" if _HOME.fullmatch(text) else re.split(r"[/\\]+", text)[-1]
    return value
