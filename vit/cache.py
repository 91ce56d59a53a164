"""The folder for what can be made or fetched again: weights, data sets, features, indexes."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """VIT_CACHE, or `vit` in the user's cache directory; it may not exist yet."""
    given = os.environ.get("VIT_CACHE")
    return Path(given) if given else _default_directory()


def cached(path: Path) -> Path:
    """Where to read a path below `cache_directory()`.

    Earlier versions kept data sets, features and indexes in the user's cache directory whatever
    VIT_CACHE says. What only that place has is read there.
    """
    home = cache_directory()
    if path.exists() or not path.is_relative_to(home):
        return path
    earlier = _default_directory() / path.relative_to(home)
    return earlier if earlier.exists() else path


def _default_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "vit")
