"""One thread a test process, and no writing into the user's caches."""

import os

# Before torch is imported: small tensors are slower on many threads, and CI machines are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices and downloads of a test go into its own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
