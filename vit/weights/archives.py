"""Archives of tensors, read only if every byte is as it was written.

Zip (.ckpt, .pth, .npz): torch.load does not compare the CRC-32 of the archive's members, and a
folder bit in a member's attributes makes it return that tensor unread. A sharded .ckpt is a folder
with a SHA-256 of each of its files in digests.json.
"""

import argparse
import hashlib
import pickle
import zipfile
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from vit.errors import MESSAGE, UserError, shorten
from vit.tables import resolve, rows

# Names in RUN/checkpoints: the state to resume from, and the best validation score.
LAST, BEST = "last.ckpt", "best.ckpt"
DIGESTS = "digests.json"
"""File of a sharded checkpoint, name -> SHA-256; written last, so a folder with it is whole."""

_BLOCK = 1 << 20


class FolderReader(Protocol):
    """Reads a checkpoint that is a folder: a row of the table `folders`."""

    def __call__(
        self, path: Path, device: str, *, like: nn.Module | None, training: bool
    ) -> dict[str, Any] | None:
        """None for another kind of folder; arguments as of `read_archive`. UserError unless every
        file has the SHA-256 in DIGESTS."""
        ...


def check_archive(path: Path) -> None:
    """UserError for a member without its CRC-32 or SHA-256; reads the whole, 1 s per GB.

    A .ckpt is written by torch.save, which stores members uncompressed and without attributes. In
    files of other programs a CRC-32 of zero means none (torch.serialization.set_crc32_options).
    """
    if path.is_dir():
        read_archive(path, "meta")
        return
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


def digest_of(file: Path) -> str:
    """SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_checkpoint(
    path: Path, device: str = "cpu", like: nn.Module | None = None
) -> dict[str, Any]:
    """Content of a .ckpt, without executing code; device="meta" leaves out tensor values.

    `like`: a model to score, which needs less; if it is sharded, each process reads its rows.
    """
    content = read_archive(path, device, like=like, training=like is None)
    try:
        content["state_dict"].keys()
        content["global_step"] = int(content["global_step"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged or no checkpoint ({reason(error)})") from error
    return content


def read_archive(
    path: Path,
    device: str = "cpu",
    *,
    like: nn.Module | None = None,
    training: bool = True,
    mmap: bool = False,
) -> Any:
    """Content of an archive or a sharded folder that is whole; arguments as of `read_checkpoint`.

    `training`: False leaves out what only a resume needs, of a folder. `mmap`: tensors of a file
    are read when they are used.
    """
    if not path.is_dir():
        check_archive(path)
        return load_torch(path, device, mmap=mmap)
    for row in rows("folders").values():
        reader: FolderReader = resolve(row)
        if (content := reader(path, device, like=like, training=training)) is not None:
            return content
    raise UserError(f"{path} is a folder of a kind that is not read here")


def load_torch(path: Path, device: str = "cpu", *, mmap: bool = False) -> Any:
    """Content of a file of torch.save. UserError where it is damaged, or needs code to be executed
    to load."""
    try:
        # Trainings of torchvision, timm and DeiT save their options beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location=device, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} needs code to be executed to load, which is refused; where you trust it, run "
            "torch.save(torch.load(path, weights_only=False)['state_dict'], 'weights.pth') or the "
            "like, and load that"
        ) from error
    except Exception as error:  # torch.load has no error type of its own for a broken file
        raise UserError(f"{path} is damaged or incomplete ({reason(error)})") from error


def reason(error: BaseException) -> str:
    """The first line of a library's message."""
    return shorten((str(error).strip() or type(error).__name__).splitlines()[0], MESSAGE)
