"""Zip archives of tensors (.ckpt, .pth, .npz), read only if every byte is as it was written.

torch.load does not compare the CRC-32 of the archive's members, and a folder bit in a member's
attributes makes it return that tensor unread.
"""

import zipfile
from pathlib import Path
from typing import Any

import torch

from vit.errors import UserError

# Names in RUN/checkpoints: the state to resume from, and the best validation score.
LAST, BEST = "last.ckpt", "best.ckpt"

_BLOCK = 1 << 20


def check_archive(path: Path) -> None:
    """UserError for a member without its CRC-32; reads the file, 1 s per GB.

    A .ckpt is written by torch.save, which stores members uncompressed and without attributes. In
    files of other programs a CRC-32 of zero means none (torch.serialization.set_crc32_options).
    """
    ours = path.suffix == ".ckpt"
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            for member in archive.infolist():
                if ours and (member.external_attr or member.compress_type):
                    raise zipfile.BadZipFile(f"the entry of {member.filename} has changed")
                if ours or member.CRC:
                    with archive.open(member) as stream:
                        while stream.read(_BLOCK):
                            pass
        except Exception as error:  # a wrong offset alone is BadZipFile, struct.error or OSError
            raise UserError(f"{path} is damaged or incomplete ({error})") from error


def read_checkpoint(path: Path, device: str = "cpu") -> dict[str, Any]:
    """Content of a .ckpt file, without executing code; device="meta" leaves out tensor values."""
    check_archive(path)
    try:
        content = torch.load(path, map_location=device, weights_only=True)
        content["state_dict"].keys()
        content["global_step"] = int(content["global_step"])
    except Exception as error:  # torch.load has no error type of its own for a broken file
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{path} is damaged or no checkpoint ({reason[:100]})") from error
    return content
