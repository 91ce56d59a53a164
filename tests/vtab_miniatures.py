"""19 miniatures in the layout of VTAB-1k, as benchmarks/papers/vtab/run.py draws them."""

from pathlib import Path

import pytest

from benchmarks.papers.vtab.run import draw


@pytest.fixture(scope="session")
def vtab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per task; their lists name the pictures in ../images. Not to be changed."""
    root = tmp_path_factory.mktemp("miniatures") / "vtab"
    draw(root)
    return root
