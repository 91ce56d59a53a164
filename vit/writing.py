"""Folders that can be written to, and files that appear whole."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from vit.errors import UserError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?")  # names that `beside` gives


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path with the suffix of `path`, which replaces `path` if nothing fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with naming(path):
            yield temporary
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())  # else a crash could leave the new name on an empty file
            put(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the system, such as of a full disk, name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def beside(path: Path) -> Path:
    """A temporary name with the suffix of `path`."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def put(temporary: Path, path: Path) -> None:
    """Gives a file or folder, complete on disk, its name; what had the name is removed.

    No system call replaces a folder: the old one is renamed before, and removed afterwards. For a
    kill in between there is `recover`.
    """
    old = beside(path)
    if path.is_dir() or (temporary.is_dir() and path.exists()):
        path.rename(old)
    temporary.replace(path)
    _sync_directory(path.parent)
    remove(old)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file."""
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, *, errors: str = "backslashreplace") -> None:
    """Writes a text file in UTF-8; `errors`, for what is not Unicode, is that of str.encode."""
    write_bytes(path, text.encode("utf-8", errors))


def writable(folder: Path, option: str) -> Path:
    """The folder, made if need be. UserError, with the `option`, if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{option} {folder}: cannot be written to ({error.strerror}); choose another folder"
        ) from error
    return folder


def recover(folder: Path, last: str) -> None:
    """Names whole folders, known by their file `last`, that a kill has left unnamed; the newest.

    For the sole writer of `folder`, before `remove_orphans`.
    """
    found = [file for file in folder.glob(f".*/{last}") if is_temporary(file.parent.name)]
    for file in sorted(found, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        name = file.parent.stem.split(".")[1] + file.parent.suffix  # .last.1a2b3c4d.ckpt
        if not (folder / name).exists():
            file.parent.rename(folder / name)


def remove_orphans(folder: Path) -> None:
    """Deletes temporary files and folders of killed processes; for the sole writer of `folder`."""
    for path in folder.glob(".*"):
        if is_temporary(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Deletes a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """The name is one that `beside` gives."""
    return _TEMPORARY.fullmatch(name) is not None


def for_spreadsheet(cells: Iterable[Any]) -> list[Any]:
    """The cells of a row; texts that a spreadsheet would run as formulas get a leading '."""
    signs = ("=", "+", "-", "@", "\t", "\r", "\n")
    return [f"'{c}" if isinstance(c, str) and c.startswith(signs) else c for c in cells]


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON file for people to read and edit."""
    write_text(path, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def _sync_directory(folder: Path) -> None:
    """Syncs the new name to disk, where the system can (Windows cannot)."""
    with suppress(OSError):  # some network file systems refuse this; the file itself is on disk
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
