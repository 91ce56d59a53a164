"""Where the real weights are, if anywhere; and a server for weights that are fetched."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints.loopback import Handler, Server


@pytest.fixture(scope="session")
def shared_weights() -> Path:
    """Real weights beside the checkout, which are not part of it."""
    beside = Path(__file__).parents[3] / "shared"
    path = Path(os.environ.get("VIT_SHARED", beside)) / "weights" / "vit_s14_dinov2_saliency"
    if not (path / "reference.npz").is_file():
        pytest.skip(f"no real weights at {path}; VIT_SHARED names the folder that has them")
    return path


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Stands in for every address but hf://; what is downloaded goes to tmp_path / "cache"."""
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.redirects = {}, [], {}
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("VIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("VIT_GS_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    server.server_close()
