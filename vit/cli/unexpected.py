"""Reports an internal error in one line, and writes its traceback to a file."""

import os
import time
import traceback
from pathlib import Path

from vit.cache import cache_directory
from vit.errors import MESSAGE, shorten


def report(error: BaseException) -> str:
    """Writes the traceback to a file in the cache, and returns the line about it."""
    text = "".join(traceback.format_exception(error))
    path = _write(text)
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    where = "could not be written" if path is None else f"is in {path}"
    return f"unexpected error in {_module(error)}: {shorten(what, MESSAGE)}; the traceback {where}"


def _module(error: BaseException) -> str:
    """The module of this package that the error comes from."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    names = [str(frame.f_globals.get("__name__", "?")) for frame in frames]
    return [name for name in ["vit", *names] if name == "vit" or name.startswith("vit.")][-1]


def _write(text: str) -> Path | None:
    name = f"traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    path = cache_directory() / "errors" / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return path
