"""Refuses named pipes and devices before they are opened: reading one may never end."""

import os
import stat
from pathlib import Path

from vit.errors import UserError

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def regular_file(path: str | Path, what: str = "a file") -> Path:
    """The path of an existing regular file. UserError for others, which are not `what`."""
    kind = irregular(path)
    if kind is not None:
        raise UserError(f"{os.fspath(path)} is not {what}: it is {kind}")
    return Path(path)


def irregular(path: str | os.PathLike[str]) -> str | None:
    """The kind of a path that is no regular file ("a named pipe", "missing"), or None."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return f"not readable ({getattr(error, 'strerror', None) or error})"
    kinds = {stat.S_IFREG: None, stat.S_IFDIR: "a directory", **_SPECIAL}
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def special(path: str | os.PathLike[str]) -> str | None:
    """The kind of a path that `open` would not refuse, but that must not be opened, or None."""
    kind = irregular(path)
    return kind if kind in _SPECIAL.values() else None
