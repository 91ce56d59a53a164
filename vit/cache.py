"""The cache folder: weights, data sets, features."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """VIT_CACHE, or `vit` in the user's cache directory; it may not exist yet."""
    if folder := os.environ.get("VIT_CACHE"):
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "vit")
