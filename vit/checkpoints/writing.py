"""Writing safetensors without numpy and without a copy: a length, a JSON header and the bytes.

Source: github.com/huggingface/safetensors, "Format".
"""

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes contiguous CPU tensors; `metadata` is what safetensors calls __metadata__."""
    # The widest first, so that every tensor is aligned; as the safetensors package orders them.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
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
            stream.write(memory_of(tensors[name]))


def memory_of(tensor: Tensor) -> Any:
    """The bytes of a contiguous CPU tensor, as a buffer over its own memory."""
    assert tensor.is_contiguous() and tensor.device.type == "cpu"
    if not tensor.numel():
        return b""
    return (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
