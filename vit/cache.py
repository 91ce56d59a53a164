"""The cache folder: weights, data sets, features, indexes."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """VIT_CACHE, or `vit` in the user's cache directory; it may not exist yet."""
    folder = os.environ.get("VIT_CACHE")
    return Path(folder) if folder else _default_directory()


def cached(path: Path) -> Path:
    """Where to read a path below `cache_directory()`.

    Earlier versions ignored VIT_CACHE for data sets, features and indexes. Files that exist only in
    the user's cache directory are read from there.
    """
    home = cache_directory()
    if path.exists() or not path.is_relative_to(home):
        return path
    earlier = _default_directory() / path.relative_to(home)
    return earlier if earlier.exists() else path


def _default_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "vit")
