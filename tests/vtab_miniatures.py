"""19 miniatures in the layout of VTAB-1k, as benchmarks/vtab.py draws them."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "vtab.py"


@pytest.fixture(scope="session")
def vtab_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per task; their lists name the pictures in ../images. Not to be changed."""
    spec = importlib.util.spec_from_file_location("vtab_miniatures", SCRIPT)
    assert spec is not None and spec.loader is not None
    miniatures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(miniatures)
    root = tmp_path_factory.mktemp("miniatures") / "vtab"
    miniatures.draw(root)
    return root
