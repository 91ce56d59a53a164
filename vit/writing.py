"""Folders that can be written to, and files that appear whole."""

import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from vit.errors import UserError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?")  # names that `atomic` gives


@contextmanager
def atomic(path: Path, before: Callable[[], None] | None = None) -> Iterator[Path]:
    """A temporary path with the suffix of `path`, which replaces `path` if nothing fails.

    `before` is called once the content is on disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())  # otherwise a crash could leave the new name on an empty file
        if before is not None:
            before()
        temporary.replace(path)
        _sync_directory(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file."""
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, *, errors: str = "strict") -> None:
    """Writes a text file in UTF-8; `errors` is that of str.encode."""
    write_bytes(path, text.encode("utf-8", errors))


def writable(folder: Path, option: str) -> Path:
    """The folder, made if need be. UserError, with the `option`, if it cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file; give a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = f"cannot be written to ({error.strerror}); choose another folder"
        raise UserError(f"{option} {folder}: {reason}") from error
    return folder


def remove_orphans(folder: Path) -> None:
    """Deletes temporary files of killed processes; for the sole writer of `folder`."""
    for path in folder.glob(".*"):
        if is_temporary(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """The name is one that `atomic` gives."""
    return _TEMPORARY.fullmatch(name) is not None


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON file for people to read and edit; a name that is not Unicode is escaped."""
    text = json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    write_text(path, text, errors="backslashreplace")


def _sync_directory(folder: Path) -> None:
    """Syncs the new name to disk, where the system can (Windows cannot)."""
    with suppress(OSError):  # some network file systems refuse this; the file itself is on disk
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
