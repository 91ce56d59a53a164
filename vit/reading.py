"""Files that a user names: checked to be regular files before anything reads them.

Opening a named pipe waits for a writer that may never come, and a device such as /dev/zero has no
end, so the kind of a file is looked at first.
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
    """The path itself, if it names an existing regular file; symbolic links are followed.

    `what`: what is expected there, with its article, for the message: "a file of weights".
    Raises UserError otherwise.
    """
    kind = irregular(path)
    if kind is not None:
        raise UserError(f"{os.fspath(path)} is not {what}: it is {kind}")
    return Path(path)


def irregular(path: str | os.PathLike[str]) -> str | None:
    """What stands at `path` instead of a regular file ("a named pipe", "missing"), or None."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "missing"
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return f"not readable ({getattr(error, 'strerror', None) or error})"
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def special(path: str | os.PathLike[str]) -> str | None:
    """What must not be opened: "a named pipe", "a device" or "a socket" at `path`.

    None for all else. `open` refuses directories and missing files by itself, with the system's
    own words.
    """
    kind = irregular(path)
    return kind if kind in _SPECIAL else None
