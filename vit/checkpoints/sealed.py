"""A digest inside a .ckpt file, over all of its bytes.

A checkpoint is a zip file, and the digest is its comment, which torch and zipfile pass over: the
file and its digest appear in one rename. The digest is BLAKE2b over the CRC-32 of each MiB. A CRC
finds every burst of up to 32 bits and all but 2**-32 of other damage in its block; SHA-256 or
BLAKE2b over the whole file costs four to nine times as much.
"""

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from vit.errors import UserError

LAST = "last.ckpt"
"""In RUN/checkpoints: where the run continues."""
PREVIOUS = "previous.ckpt"
"""The last.ckpt before."""
BEST = "best.ckpt"
"""The best validation score."""

_BLOCK = 1 << 20
_LABEL = b"vit crc32 blake2b "
_DIGITS = 32
_COMMENT = len(_LABEL) + _DIGITS
_END = b"PK\x05\x06"
_END_SIZE = 22
"""Of the last record of a zip file; its last two bytes are the length of the comment."""


def seal(path: Path) -> None:
    """Adds the digest to a file that torch.save has written."""
    with path.open("r+b") as file:
        file.seek(-_END_SIZE, os.SEEK_END)
        end = file.read(_END_SIZE)
        assert end.startswith(_END) and end.endswith(b"\0\0"), "torch.save wrote no plain zip file"
        file.seek(-2, os.SEEK_END)
        file.write(_COMMENT.to_bytes(2, "little") + _LABEL)
        file.write(_digest(file, file.tell()))


def verify(path: Path) -> bool:
    """Whether the file has a digest; one of earlier versions or of another program has none.

    Reads the whole file, 0.4 CPU seconds per GB. Without a digest the CRC-32 of each member is
    compared, which says nothing about the bytes between members. UserError where the file is
    damaged.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _COMMENT, 0))
            comment = file.read()
            if comment.startswith(_LABEL):
                if _digest(file, size - _DIGITS) != comment[len(_LABEL) :]:
                    raise UserError(f"{path} is damaged: its bytes have changed since it was saved")
                return True
            file.seek(max(size - _END_SIZE, 0))
            end = file.read()
        # A tail or a cut leaves no end; a changed label leaves one with a comment before it.
        if path.suffix == ".ckpt" and not (end.startswith(_END) and end.endswith(b"\0\0")):
            raise UserError(f"{path} is damaged: it does not end as it was saved")
        _check_members(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise UserError(f"{path} is damaged or incomplete ({error})") from error
    return False


def is_whole(path: Path) -> bool:
    """Whether `verify` finds no damage."""
    try:
        verify(path)
    except UserError:
        return False
    return True


def _check_members(path: Path) -> None:
    """BadZipFile where a member has not its CRC-32. torch.load does not look at it.

    A sum of zero says that the writer left it out (torch.serialization.set_crc32_options).
    """
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.CRC:
                with archive.open(member) as stream:
                    while stream.read(_BLOCK):
                        pass


def _digest(file: BinaryIO, size: int) -> bytes:
    """Hexadecimal digits of the first `size` bytes; the position is behind them."""
    digest, block = hashlib.blake2b(digest_size=_DIGITS // 2), memoryview(bytearray(_BLOCK))
    file.seek(0)
    left = size
    while left > 0:
        count = file.readinto(block[: min(left, _BLOCK)])  # pyright: ignore
        if not count:
            break
        digest.update(zlib.crc32(block[:count]).to_bytes(4, "little"))
        left -= count
    digest.update(size.to_bytes(8, "little"))
    return digest.hexdigest().encode()
