"""The cache, writable folders, and files that appear whole or not at all."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from vit.errors import UserError

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}(\.\w+)?")  # names made by `beside`


def cache_directory() -> Path:
    """VIT_CACHE, or `vit` in the user's cache directory; it may not exist yet."""
    if folder := os.environ.get("VIT_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "vit")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Context with a temporary path, which replaces `path` if nothing fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with naming(path):
            yield temporary
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())  # or a crash could leave an empty file
            put(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which errors of the system, such as a full disk, name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def beside(path: Path) -> Path:
    """A temporary path in the folder of `path`, with its suffix."""
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")


def put(temporary: Path, path: Path) -> None:
    """Renames a complete file or folder to `path`, and removes what had that name.

    No system call replaces a folder: the old one is renamed first and removed last. `recover` mends
    a kill in between.
    """
    old = beside(path)
    if path.is_dir() or (temporary.is_dir() and path.exists()):
        path.rename(old)
    temporary.replace(path)
    with suppress(OSError):  # Windows and some network file systems refuse to sync names
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    remove(old)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file."""
    with atomic(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str, *, errors: str = "backslashreplace") -> None:
    """Writes a text file in UTF-8; `errors` is that of str.encode."""
    write_bytes(path, text.encode("utf-8", errors))


def writable(folder: Path, option: str) -> Path:
    """Creates the folder, if necessary. UserError with the `option` if it cannot be written."""
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
    """Renames complete folders that a kill left with temporary names, the newest of each name.

    A folder is complete if it has a file `last`. For the sole writer of `folder`, before
    `remove_orphans`.
    """
    files = [file for file in folder.glob(f".*/{last}") if is_temporary(file.parent.name)]
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        name = file.parent.stem.split(".")[1] + file.parent.suffix  # .last.1a2b3c4d.ckpt
        if not (folder / name).exists():
            file.parent.rename(folder / name)


def remove_orphans(folder: Path) -> None:
    """Deletes temporary files and folders of killed processes; for the sole writer of `folder`."""
    for path in folder.glob(".*"):
        if is_temporary(path.name):
            remove(path)


def remove(path: Path) -> None:
    """Deletes a file or folder if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_temporary(name: str) -> bool:
    """True for a name made by `beside`."""
    return _TEMPORARY.fullmatch(name) is not None


def for_spreadsheet(cells: Iterable[object]) -> list[object]:
    """The cells of a row, with a ' before texts that a spreadsheet would run as formulas."""
    signs = ("=", "+", "-", "@", "\t", "\r", "\n")
    return [f"'{c}" if isinstance(c, str) and c.startswith(signs) else c for c in cells]


def write_json(path: Path, values: Mapping[str, object]) -> None:
    """Writes a JSON file for people to read and edit."""
    write_text(path, json.dumps(values, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
