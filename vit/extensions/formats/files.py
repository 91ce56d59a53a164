"""Files of weights that other programs have saved: .npz, safetensors, and pickles of torch.

The first bytes of a file decide its kind, never its name. Row of the table `weight_files`.
"""

import tokenize
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.errors import UserError
from vit.extensions.formats.trainings import flattened, model_of
from vit.weights.archives import check_archive, load_torch, reason
from vit.weights.weight_file import (
    FORMAT,
    Shapes,
    WeightFile,
    WeightSet,
    is_safetensors,
    open_safetensors,
)

# Errors of reading a damaged zip archive or the header of an array in it.
_DAMAGED = (
    zipfile.BadZipFile,
    tokenize.TokenError,
    NotImplementedError,
    EOFError,
    ValueError,
    OSError,
)


def open_file(path: Path, wanted: WeightSet | None) -> WeightFile:
    """The model in a file, among all that a training saves with it."""
    openers = {"zip": _open_zip, "safetensors": open_safetensors, "pickle": _open_torch}
    return model_of(openers[kind_of(path)](path), wanted)


def kind_of(path: Path) -> str:
    """ "zip", "safetensors" or "pickle", by the first bytes. UserError for anything else."""
    if is_safetensors(path):
        return "safetensors"
    with path.open("rb") as stream:
        start = stream.read(16)
    if start[:4] == b"PK\x03\x04":
        return "zip"
    if start[:1] == b"\x80":
        return "pickle"
    what = "it is neither safetensors nor .npz nor a torch file, or it is damaged"
    if not start:
        what = "it is empty; fetch it again"
    elif start.lstrip()[:1] == b"<":
        what = "it is a web page, so a download went wrong; fetch it again"
    elif start.startswith(b"version https://"):
        what = "it is a Git LFS pointer, so the real file is still to be fetched (`git lfs pull`)"
    raise UserError(f"{path} is not a file of weights: {what}")


def _open_zip(path: Path) -> WeightFile:
    try:
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith(".npy") for name in archive.namelist()):
                return _open_npz(path, archive)
    except UserError:
        raise
    except _DAMAGED as error:
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error
    check_archive(path)
    return _open_torch(path, mmap=True)


def _open_npz(path: Path, archive: zipfile.ZipFile) -> WeightFile:
    from numpy.lib import format as npy  # numpy only where there is a numpy file

    shapes = Shapes()
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


def _open_torch(path: Path, *, mmap: bool = False) -> WeightFile:
    """`mmap`: not of files older than torch 1.6."""
    content: Any = load_torch(path, mmap=mmap)
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not a state dict")
    described = content.get(FORMAT) if isinstance(content.get(FORMAT), dict) else None
    # Callbacks of Lightning may keep weights of their own, such as those of the first step.
    tensors = flattened({name: value for name, value in content.items() if name != "callbacks"})
    shapes = Shapes({key: tuple(value.shape) for key, value in tensors.items()})
    return WeightFile(path=path, shapes=shapes, read=tensors.__getitem__, vit=described)
