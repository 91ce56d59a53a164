"""A small model, and pictures for it."""

from pathlib import Path

import pytest

from tests.command import coloured, saved


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model` and `photos`."""
    folder = tmp_path_factory.mktemp("serve")
    saved(folder / "model")
    coloured(folder / "photos")
    return folder
