"""Checks that files named by the user are regular files before reading them.

Opening a named pipe waits for a writer that may never come, and a device such as /dev/zero never
ends.
"""

import os
import stat
from pathlib import Path

from vit.errors import UserError

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}
_SPECIAL = frozenset(_KINDS.values()) - {"a directory"}


def regular_file(path: str | Path, what: str = "a file") -> Path:
    """The path, if it is an existing regular file; symbolic links are followed.

    `what`: the expected kind of file for the message, with article: "a file of weights".
    Raises UserError otherwise.
    """
    kind = irregular(path)
    if kind is not None:
        raise UserError(f"{os.fspath(path)} is not {what}: it is {kind}")
    return Path(path)


def irregular(path: str | os.PathLike[str]) -> str | None:
    """The kind of `path` if it is not a regular file ("a named pipe", "missing"), or None."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return f"not readable ({getattr(error, 'strerror', None) or error})"
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def special(path: str | os.PathLike[str]) -> str | None:
    """The kind of `path` if it must not be opened: "a named pipe", "a device" or "a socket".

    None for everything else; `open` itself refuses directories and missing files.
    """
    kind = irregular(path)
    return kind if kind in _SPECIAL else None
