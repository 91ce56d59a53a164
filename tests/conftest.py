"""One thread a test process, and no writing into the user's caches."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

# Before torch is imported: small tensors are slower on many threads, and CI machines are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load_benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script of benchmarks/ anew under its own name; it finds the scripts beside it."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)  # dataclasses look themselves up there
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices and downloads of a test go into its own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
