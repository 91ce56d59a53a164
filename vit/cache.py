"""The folder for what can be made or fetched again."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """VIT_CACHE, or `vit` in the user's cache directory; it may not exist yet."""
    if "VIT_CACHE" in os.environ:
        return Path(os.environ["VIT_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit"
