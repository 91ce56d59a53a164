"""Where the real weights are, if anywhere."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """Real weights beside the checkout, which are not part of it."""
    beside = Path(__file__).parents[3] / "shared"
    path = Path(os.environ.get("VIT_SHARED", beside)) / "weights" / "vit_s14_dinov2_saliency"
    if not (path / "reference.npz").is_file():
        pytest.skip(f"no real weights at {path}; VIT_SHARED names the folder that has them")
    return path
