"""Files of tensors, opened without executing code: names and shapes now, tensors when asked for.

The first bytes of a file decide its kind, never its name.
"""

import argparse
import json
import os
import pickle
import shlex
import tokenize
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit.errors import MESSAGE, UserError, shorten
from vit.weights import lora
from vit.weights.archives import DIGESTS, check_archive, read_folder
from vit.weights.contents import flattened, model_in, unwrapped

# Errors of reading a damaged zip archive or the header of an array in it.
_DAMAGED = (
    zipfile.BadZipFile,
    tokenize.TokenError,
    NotImplementedError,
    EOFError,
    ValueError,
    OSError,
)
IN_DIRECTORY = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """Names and shapes of a file's tensors, and how to read one."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    header: dict[str, str] = field(default_factory=dict)
    """Metadata of a safetensors file."""
    config: dict[str, Any] = field(default_factory=dict)
    """config.json beside the file."""
    preprocessor: dict[str, Any] = field(default_factory=dict)
    """preprocessor_config.json beside the file."""
    vit: dict[str, Any] | None = None
    """The description in a Lightning checkpoint of this package."""
    prefix: str = ""
    """Of the tensors' names in the file, left out here, such as "state_dict.model."."""
    average: bool = False
    """The tensors are the average of a training's weights."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Other parts of the file -> why they are not used."""
    hints: dict[str, Any] = field(default_factory=dict)
    """Facts from the user: image_size, weights, and fields of the configuration."""

    def renamed(self, rename: Callable[[str], str | None]) -> "WeightFile":
        """The same tensors under other names; those renamed to None are hidden."""
        pairs = {new: old for old in self.shapes if (new := rename(old)) is not None}
        shapes = {new: self.shapes[old] for new, old in pairs.items()}
        return replace(self, shapes=shapes, read=lambda name: self.read(pairs[name]))


def open_weights(
    path: str | Path, hints: dict[str, Any] | None = None, asked: str | None = None
) -> WeightFile:
    """Opens a weight file, a directory with one, or a run directory.

    Of a file with raw weights and their average, the `asked` one is read, else the average.
    UserError for a file that is missing, damaged, no weights, or needs code to be executed.
    """
    if not os.fspath(path):  # Path("") is the current directory
        raise UserError("pretrained='' names no file; give a file, a directory or an address")
    openers = {"zip": _open_zip, "safetensors": _open_safetensors, "pickle": _open_torch}
    try:
        path = find_weights(Path(path))
        opener = partial(_open_folder, asked) if path.is_dir() else openers[kind_of(path)]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error
    return replace(
        _model_of(opener(path), asked),
        hints=hints or {},
        config=read_json(path.parent / "config.json"),
        preprocessor=read_json(path.parent / "preprocessor_config.json"),
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
    if not weights and (path / "config.yaml").is_file():
        raise UserError(
            f"{path} is a run without a finished model; name a file in its checkpoints/, or "
            f"continue it: vit fit --run_dir {shlex.quote(str(path))}"
        )
    if len(weights) != 1:
        what = "no weights" if not weights else f"{len(weights)} files of weights"
        raise UserError(
            f"{path} holds {what}; name one file, or a directory with model.safetensors"
        )
    return weights[0]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is none."""
    return parse_json(path.read_bytes(), path) if path.is_file() else {}


def parse_json(text: str | bytes, path: Path) -> dict[str, Any]:
    """The JSON object in `text`, which stands in `path`. UserError for anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged or no JSON ({reason(error)})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} is damaged: it holds a JSON {type(values).__name__}, no object")
    return values


def reason(error: BaseException) -> str:
    """The first line of a library's message."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0], MESSAGE)


def kind_of(path: Path) -> str:
    """ "zip", "safetensors" or "pickle", by the first bytes. UserError for anything else."""
    with path.open("rb") as stream:
        start = stream.read(16)
    size = path.stat().st_size
    if start[:4] == b"PK\x03\x04":
        return "zip"
    if 0 < int.from_bytes(start[:8], "little") <= size and start[8:9] == b"{":
        return "safetensors"
    if start[:1] == b"\x80":
        return "pickle"
    what = "it is neither safetensors nor .npz nor a torch file, or it is damaged"
    if size == 0:
        what = "it is empty; fetch it again"
    elif start.lstrip()[:1] == b"<":
        what = "it is a web page, so a download went wrong; fetch it again"
    elif start.startswith(b"version https://"):
        what = "it is a Git LFS pointer, so the real file is still to be fetched (`git lfs pull`)"
    raise UserError(f"{path} is not a file of weights: {what}")


def _open_safetensors(path: Path) -> WeightFile:
    try:
        file = safe_open(str(path), framework="pt")
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        header = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error
    return WeightFile(path=path, shapes=shapes, read=file.get_tensor, header=header)


def _open_zip(path: Path) -> WeightFile:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if any(name.endswith(".npy") for name in members):
                return _open_npz(path, archive)
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error
    check_archive(path)
    return _open_torch(path)


def _open_npz(path: Path, archive: zipfile.ZipFile) -> WeightFile:
    from numpy.lib import format as npy  # numpy only where there is a numpy file

    shapes = {}
    for member in archive.namelist():
        with archive.open(member) as stream:
            if npy.read_magic(stream) == (1, 0):
                shape, _, dtype = npy.read_array_header_1_0(stream)
            else:
                shape, _, dtype = npy.read_array_header_2_0(stream)
        if dtype.hasobject:
            raise UserError(
                f"{path} needs code to be executed to load, which is refused ({member} holds "
                "Python objects); where you trust it, load it with numpy.load(path, "
                "allow_pickle=True) and save its arrays of numbers with numpy.savez"
            )
        if dtype.kind in "fiub" or dtype.str == "|V2":
            shapes[member.removesuffix(".npy")] = tuple(shape)
    return WeightFile(path=path, shapes=shapes, read=lambda key: _read_npy(path, key))


def _read_npy(path: Path, key: str) -> Tensor:
    import numpy as np

    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged or incomplete at {key!r} ({reason(error)})") from error
    if array.dtype.str == "|V2":  # numpy has no bfloat16: such arrays are saved as raw two bytes
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))


def _open_torch(path: Path) -> WeightFile:
    try:
        try:
            top = _load(path, mmap=True)
        except RuntimeError:  # files older than torch 1.6 cannot be mapped
            top = _load(path)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} needs code to be executed to load, which is refused; where you trust it, run "
            "torch.save(torch.load(path, weights_only=False)['state_dict'], 'weights.pth') or the "
            "like, and load that"
        ) from error
    # torch reads safetensors too, by the name of the file.
    except (RuntimeError, EOFError, ValueError, OSError, KeyError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error
    if not isinstance(top, Mapping):
        raise UserError(f"{path} holds a {type(top).__name__}, not a state dict")
    return _from_state_dict(path, top)


def _load(path: Path, **options: Any) -> Any:
    # torchvision's, timm's and DeiT's trainings save their options beside the weights.
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True, **options)


def _open_folder(asked: str | None, path: Path) -> WeightFile:
    check_archive(path)
    return _from_state_dict(path, read_folder(path, training=asked == "raw"))


def _from_state_dict(path: Path, top: Mapping[str, Any]) -> WeightFile:
    described = top.get("vit") if isinstance(top.get("vit"), dict) else None
    # Callbacks of Lightning may keep weights of their own, such as those of the first step.
    tensors = flattened({name: value for name, value in top.items() if name != "callbacks"})
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    return WeightFile(path=path, shapes=shapes, read=tensors.__getitem__, vit=described)


def _model_of(file: WeightFile, asked: str | None) -> WeightFile:
    """The file below the prefix of the model that is meant."""
    file = file.renamed(unwrapped)
    prefix, average, left_out = model_in(file.path, file.shapes, asked)
    size = len(prefix)
    model = file.renamed(lambda key: key[size:] if key.startswith(prefix) else None)
    return replace(_merged(model), prefix=prefix, average=average, left_out=left_out)


def _merged(file: WeightFile) -> WeightFile:
    """The file of a run with LoRA as that of its merged model; any other as it is."""
    layers = {name.rpartition(".")[0] for name in file.shapes if lora.is_factor(name)}
    if not layers:
        return file

    def read(name: str) -> Tensor:
        layer, _, last = name.rpartition(".")
        weight = file.read(name)
        if last != "weight" or layer not in layers:
            return weight
        return lora.merged(weight, file.read(f"{layer}.{lora.A}"), file.read(f"{layer}.{lora.B}"))

    shapes = {name: shape for name, shape in file.shapes.items() if not lora.is_factor(name)}
    return replace(file, shapes=shapes, read=read)
