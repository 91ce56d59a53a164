"""Files of tensors, opened without executing code: names and shapes now, tensors when asked for."""

import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

from safetensors import SafetensorError
from torch import Tensor

from vit.errors import UserError
from vit.models.fields import JsonObject, is_object
from vit.tables import resolve, rows
from vit.weights import lora
from vit.weights.archives import DIGESTS, read_archive, reason
from vit.weights.sealed import opened

FORMAT = "vit"
"""Key of the description in our own files: a safetensors header, and a checkpoint."""
IN_DIRECTORY = ("model.safetensors", "pytorch_model.bin")
WeightSet = Literal["raw", "average"]
SETS: dict[WeightSet, str] = {"raw": "raw weights", "average": "average of the weights"}
"""Sets of weights that a training may save, in words."""
_RAW = "current_model_state"
"""Entry of a checkpoint with the raw weights beside their average."""


class Shapes(dict[str, tuple[int, ...]]):
    """Tensor name -> shape. UserError for a name that is missing."""

    def __missing__(self, name: str) -> tuple[int, ...]:
        raise UserError(f"it is incomplete, or of a family that is not read: no {name}")


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """Names and shapes of a file's tensors, and how to read one."""

    path: Path
    shapes: Shapes
    read: Callable[[str], Tensor]
    header: dict[str, str] = field(default_factory=dict[str, str])
    """Metadata of a safetensors file."""
    config: JsonObject = field(default_factory=dict[str, Any])
    """config.json beside the file."""
    preprocessor: JsonObject = field(default_factory=dict[str, Any])
    """The part image_processor of processor_config.json beside the file, which transformers
    prefers, or preprocessor_config.json."""
    vit: JsonObject | None = None
    """The description in a Lightning checkpoint of this package."""
    prefix: str = ""
    """Beginning of the tensors' names in the file, left out here, such as "state_dict.model."."""
    average: bool = False
    """The tensors are the average of a training's weights."""
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    """Other parts of the file -> why they are not used."""
    hints: JsonObject = field(default_factory=dict[str, Any])
    """Facts from the user: image_size, and fields of the configuration."""


class WeightReader(Protocol):
    """Opens a file that this package has not saved: a row of the table `weight_files`."""

    def __call__(self, path: Path, wanted: WeightSet | None, /) -> WeightFile | None:
        """None for a kind of file that it does not read; arguments as of `open_weights`."""
        ...


def open_weights(
    path: str | Path, hints: Mapping[str, object] | None = None, wanted: WeightSet | None = None
) -> WeightFile:
    """Opens a weight file, a directory with one, or a run directory.

    Of a file with raw weights and their average, the `wanted` set is read, else the average.
    UserError for a file that is missing, damaged, no weights, or needs code to be executed.
    """
    if not os.fspath(path):  # Path("") is the current directory
        raise UserError("pretrained='' names no file; give a file, a directory or an address")
    try:
        path = find_weights(Path(path))
        readers = chain([open_saved], map(resolve, rows("weight_files").values()))
        file = next(filter(None, (reader(path, wanted) for reader in readers)), None)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    if file is None:
        raise UserError(f"{path} is not a file of weights that is read here")
    part = read_json(path.parent / "processor_config.json").get("image_processor")
    return replace(
        file,
        hints=dict(hints or {}),
        config=read_json(path.parent / "config.json"),
        preprocessor=part or read_json(path.parent / "preprocessor_config.json"),
    )


def find_weights(path: Path) -> Path:
    """The file of weights that a path means: itself, or the one in a model or run directory."""
    if not path.is_dir() or (path / DIGESTS).is_file():
        if not path.exists():
            raise UserError(f"no file or directory {str(path)!r}")
        return path
    if (path / "model" / "config.json").is_file():
        path = path / "model"
    for name in IN_DIRECTORY:
        if (path / name).is_file():
            return path / name
    if (path / "model.safetensors.index.json").is_file():
        raise UserError(f"{path} is split into several files; save it as one model.safetensors")
    weights = [p for p in sorted(path.iterdir()) if p.suffix in (".safetensors", ".npz", ".ckpt")]
    if (path / "config.yaml").is_file() and {p.name for p in weights} <= {"first_batch.npz"}:
        raise UserError(
            f"{path} is a run without a finished model; name a file in its checkpoints/, or "
            f"continue it: vit fit --run_dir {shlex.quote(str(path))}"
        )
    if len(weights) != 1:
        count = f"{len(weights)} files of weights" if weights else "no weights"
        raise UserError(f"{path} holds {count}; name one file, or a folder with model.safetensors")
    return weights[0]


def open_saved(path: Path, wanted: WeightSet | None = None) -> WeightFile | None:
    """A model or checkpoint that this package has saved; None for another file."""
    if path.suffix == ".ckpt" or path.is_dir():
        content = read_archive(path, training=wanted == "raw", mmap=True)
        described = is_object(content) and is_object(content.get(FORMAT))
        return _checkpoint(path, content, wanted) if described else None
    if not is_safetensors(path):
        return None
    file, config = open_safetensors(path), read_json(path.parent / "config.json")
    return file if FORMAT in file.header or config.get("format") == FORMAT else None


def is_safetensors(path: Path) -> bool:
    """True by the first bytes: the length of a JSON object, and its brace."""
    with path.open("rb") as stream:
        start = stream.read(9)
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") <= path.stat().st_size


def open_safetensors(path: Path) -> WeightFile:
    """A safetensors file as it is."""
    try:
        file = opened(path)
        shapes = Shapes({key: tuple(file.get_slice(key).get_shape()) for key in file.keys()})
        header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error
    return WeightFile(path=path, shapes=shapes, read=file.get_tensor, header=header)


def _checkpoint(path: Path, content: JsonObject, wanted: WeightSet | None) -> WeightFile:
    """The network in a run's checkpoint; low-rank updates are added to its weights."""
    entry = _RAW if wanted == "raw" and _RAW in content else "state_dict"
    other: WeightSet = "average" if entry == _RAW else "raw"
    state: Mapping[str, Tensor] = content[entry]
    names = {name.removeprefix("model."): name for name in state if name.startswith("model.")}
    beside = {f"{entry}.{name.partition('.')[0]}" for name in state.keys() - names.values()}
    left_out = dict.fromkeys(sorted(beside), "beside the model")
    if _RAW in content:
        left_out["state_dict" if entry == _RAW else _RAW] = (
            f"the {SETS[other]}; weights={other} takes them"
        )
    layers = {name.rpartition(".")[0] for name in names if lora.is_factor(name)}

    def read(name: str) -> Tensor:
        weight, (layer, _, last) = state[names[name]], name.rpartition(".")
        if last != "weight" or layer not in layers:
            return weight
        a, b = (state[names[f"{layer}.{factor}"]] for factor in (lora.A, lora.B))
        return lora.merged(weight, a, b)

    return WeightFile(
        path=path,
        shapes=Shapes(
            {n: tuple(state[o].shape) for n, o in names.items() if not lora.is_factor(n)}
        ),
        read=read,
        vit=content[FORMAT],
        average=content[FORMAT].get("weights") == "ema" and entry != _RAW,
        left_out=left_out,
    )


def read_json(path: Path) -> JsonObject:
    """The object in a JSON file, {} if there is none."""
    return parse_json(path.read_bytes(), path) if path.is_file() else {}


def parse_json(text: str | bytes, path: Path) -> JsonObject:
    """The JSON object in `text`, which stands in `path`. UserError for anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged or no JSON ({reason(error)})") from error
    if not is_object(values):
        raise UserError(f"{path} is damaged: it holds a JSON {type(values).__name__}, no object")
    return values
