"""Writing safetensors without numpy and without a copy: a length, a JSON header and the bytes.

Source: github.com/huggingface/safetensors, "Format". A sealed file is one of our own: tensors, a
text about them, and the SHA-256 of both in the header.
"""

import ctypes
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit.writing import atomic

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Shape(Protocol):
    """Shape of a tensor that is not read."""

    def get_shape(self) -> list[int]: ...


class Safetensors(Protocol):
    """A file that `safetensors.safe_open` has opened; the library has no types."""

    def keys(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def get_tensor(self, name: str) -> Tensor: ...
    def get_slice(self, name: str) -> Shape: ...


def opened(path: Path) -> Safetensors:
    """A safetensors file; its tensors are mapped into memory."""
    return safe_open(str(path), framework="pt")


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes tensors one by one; every process calls it for shards. `metadata`: __metadata__."""
    # The widest first, so that every tensor is aligned; as the safetensors package orders them.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for name in names:
            tensor = on_cpu(tensors[name])
            stream.write(memory_of(tensor))


def write_torch(path: Path, content: Mapping[str, object]) -> None:
    """A file of torch.save, whole or not at all. OSError, with the path, on a full disk."""
    try:
        with atomic(path) as temporary, temporary.open("wb") as file:
            torch.save(content, file)
    except (OSError, RuntimeError) as error:
        # torch fails once more while it closes the file, and hides the reason.
        reason = error if isinstance(error, OSError) else error.__context__
        if isinstance(reason, OSError):
            raise OSError(reason.errno, reason.strerror, str(path)) from error
        raise


@runtime_checkable
class Sharded(Protocol):
    """A DTensor, whose import takes time that other runs need not spend."""

    def full_tensor(self) -> Tensor: ...


def is_sharded(tensor: object) -> bool:
    """True for a DTensor."""
    return isinstance(tensor, Sharded)


def full(tensor: Tensor) -> Tensor:
    """The tensor with all rows, on the device of those of this process; every process calls it."""
    return tensor.full_tensor() if isinstance(tensor, Sharded) else tensor


def on_cpu(tensor: Tensor) -> Tensor:
    """The whole tensor, contiguous on the CPU."""
    return full(tensor).detach().cpu().contiguous()


def memory_of(tensor: Tensor) -> "ctypes.Array[ctypes.c_char] | bytes":
    """The bytes of a contiguous CPU tensor, as a buffer over its own memory, which it must keep."""
    if not tensor.numel():
        return b""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of tensors, in order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = on_cpu(tensors[name])
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(memory_of(tensor))
    return digest.hexdigest()


def write_sealed(file: Path, tensors: Mapping[str, Tensor], text: str) -> None:
    """The file appears whole or not at all."""
    metadata = {"format": "pt", "vit": text, "sha256": _seal(tensors, text)}
    with atomic(file) as temporary:
        write_safetensors(temporary, tensors, metadata)


def read_sealed(file: Path) -> tuple[dict[str, Tensor], str]:
    """Tensors, on the CPU, and the text. ValueError if the file is missing or damaged."""
    try:
        content = opened(file)
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}
        if metadata["sha256"] == _seal(tensors, text := metadata["vit"]):
            return tensors, text
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{file} cannot be read") from error
    raise ValueError(f"{file} has other tensors, or another text, than were saved")


def _seal(tensors: Mapping[str, Tensor], text: str) -> str:
    return hashlib.sha256(f"{fingerprint(tensors)}\n{text}".encode()).hexdigest()
