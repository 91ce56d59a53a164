"""A safetensors file of our own: tensors, a text about them, and their SHA-256 in the header."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit.checkpoints.native import fingerprint
from vit.checkpoints.writing import write_safetensors
from vit.writing import atomic


def write_sealed(file: Path, tensors: Mapping[str, Tensor], text: str) -> None:
    """The file appears whole or not at all."""
    metadata = {"format": "pt", "vit": text, "sha256": fingerprint(tensors)}
    with atomic(file) as temporary:
        write_safetensors(temporary, tensors, metadata)


def read_sealed(file: Path) -> tuple[dict[str, Tensor], str]:
    """Tensors, on the CPU, and the text. ValueError if the file is missing or damaged."""
    try:
        with safe_open(str(file), framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}
        if metadata["sha256"] == fingerprint(tensors):
            return tensors, metadata["vit"]
    except (SafetensorError, OSError, KeyError) as error:
        raise ValueError(f"{file} cannot be read") from error
    raise ValueError(f"{file} has other tensors than were saved")
