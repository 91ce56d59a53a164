"""Weights beside the checkout, a server of files, and a small model."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.formats.loopback import Server, url
from tests.extensions.formats.mirror import Mirror, mirrored
from vit.extensions.formats import hub
from vit.models.config import ViTConfig

TINY = ViTConfig(
    image_size=16, patch_size=8, width=32, depth=1, mlp_dim=40, num_heads=4, num_classes=2
)


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """Real weights beside the checkout, which are not part of it."""
    beside = Path(__file__).parents[4] / "shared"
    path = Path(os.environ.get("VIT_SHARED", beside)) / "weights" / "vit_s14_dinov2_saliency"
    if not (path / "reference.npz").is_file():
        pytest.skip(f"no real weights at {path}; VIT_SHARED names the folder that has them")
    return path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Stands in for every address but hf://; what is downloaded goes to tmp_path / "cache"."""
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "cache"))
    with Server.running(monkeypatch) as server:
        monkeypatch.setattr(hub, "GOOGLE", url(server, ""))
        yield server


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serves the files of the table of published weights."""
    with mirrored(tmp_path / "cache", monkeypatch) as server:
        yield server
