"""Small trees of JPEG files, and a cache directory of the test's own."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

MakeTree = Callable[[Path, dict[str, int]], Path]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "own_cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("VIT_CACHE", raising=False)
    return cache


@pytest.fixture
def make_tree() -> MakeTree:
    """make_tree(root, {"train/cat": 3}) writes three JPEGs of 8 x 10 pixels, all different."""

    def make(root: Path, counts: dict[str, int]) -> Path:
        root.mkdir(parents=True, exist_ok=True)
        for number, (folder, count) in enumerate(counts.items()):
            (root / folder).mkdir(parents=True, exist_ok=True)
            for index in range(count):
                pixels = bytes((i * (3 + number) + 12 * index) % 256 for i in range(10 * 8 * 3))
                Image.frombytes("RGB", (10, 8), pixels).save(root / folder / f"{index}.jpg")
        return root

    return make
