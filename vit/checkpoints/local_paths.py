"""Model directories without paths of this machine, user names and secrets of URLs."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_PATH_OPTIONS = ("root", "pretrained", "run_dir", "resume", "source")
"""Options and entries whose values are paths, also where they are relative."""
_ABSOLUTE = re.compile(
    r"(?:/|~([a-z_][\w.-]*)?([/\\]|$)|\.\.[/\\]|[a-z]:[/\\]|\\\\|file://)", re.IGNORECASE
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def without_local_paths(value: Any, option: str = "") -> Any:
    """A copy of plain JSON values in which every local path is only its last part.

    Addresses stay, without user, password and query. `option`: the key of the value.
    """
    if isinstance(value, Mapping):
        return {key: without_local_paths(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_local_paths(item, option) for item in value]
    if not isinstance(value, str):
        return value
    text = value.strip()
    if _ADDRESS.match(text) and not text.lower().startswith("file://"):
        return _without_secrets(text)
    if _ABSOLUTE.match(text) or (option in _PATH_OPTIONS and re.search(r"[/\\]", text)):
        return _last_part(text)
    return value


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path) if part not in ("", ".", "..", "~")]
    of_user = len(parts) < 2 if path.startswith("~") else parts[-2:-1] in (["home"], ["Users"])
    return "" if of_user or not parts else parts[-1]  # ~alice and /home/alice say who it was


def _without_secrets(address: str) -> str:
    """An address without user, password and query, which may hold a signature."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return address.partition("://")[0] + "://..."
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme == "hf":  # hf://org/repo@revision has its @ behind the path
        host = parts.netloc
    fragment = parts.fragment if parts.fragment.startswith("sha256=") else ""
    return urlunsplit((parts.scheme, host, parts.path, "", fragment))
