"""What a command says about an error that nobody foresaw: one line, and a file for the report."""

import os
import tempfile
import time
import traceback
from pathlib import Path

from vit.cache import cache_directory
from vit.errors import MESSAGE, UserError, shorten


def user_error(error: BaseException) -> UserError | None:
    """The UserError that the error is, or that it was raised from or while handling; or None."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, UserError):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def report(error: BaseException, folder: Path | None) -> str:
    """Writes the traceback to a file in `folder`, or in the cache, and gives the line about it."""
    text = "".join(traceback.format_exception(error))
    path = _write(text, folder)
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    where = "could not be written" if path is None else f"is in {path}"
    return f"unexpected error in {_module(error)}: {shorten(what, MESSAGE)}; the traceback {where}"


def _module(error: BaseException) -> str:
    """The module of this package that the error comes from."""
    names = [
        str(frame.f_globals.get("__name__", "?"))
        for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    ours = [name for name in names if name.startswith("vit.")]
    return (ours or names or ["vit"])[-1]


def _write(text: str, folder: Path | None) -> Path | None:
    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    places = [] if folder is None else [folder / "traceback.txt"]
    places += [cache_directory() / "errors" / name, Path(tempfile.gettempdir(), f"vit-{name}")]
    for path in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError:
            continue
        return path
    return None
