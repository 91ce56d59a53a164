"""Files that appear whole or not at all."""

import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The names that `atomic` gives, and those of checkpoints in earlier versions.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?|\..+\.ckpt\.\d+\.tmp")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; what is written there replaces `path` if nothing fails.

    The temporary name ends in the suffix of `path`, since some writers choose a format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())  # else a crash could leave the new name on a hollow file
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
    """Writes a text file in UTF-8; `errors` is what str.encode does with other characters."""
    write_bytes(path, text.encode("utf-8", errors))


def remove_orphans(folder: Path) -> None:
    """Deletes the temporary files of processes that were killed while they wrote into `folder`.

    Only for who is the sole writer of the folder.
    """
    for path in folder.glob(".*"):
        if is_temporary(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """Whether a file of that name is what a killed writer has left."""
    return _TEMPORARY.fullmatch(name) is not None


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Writes a JSON file for people to read and edit."""
    write_text(path, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n")


def spreadsheet_text(text: str) -> str:
    """A cell of text that spreadsheet programs show as it is, with ' before it where need be.

    They run text that begins with = + - @ as a formula, even from a quoted cell of a CSV file,
    and skip a tab or a line break before it.
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def _sync_directory(folder: Path) -> None:
    """Puts the new name on disk, where the system can open a directory (Windows cannot)."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems refuse it; the file itself is on disk
    finally:
        os.close(handle)
