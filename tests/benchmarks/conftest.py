"""The photos of tests/training, for benchmarks that train, and the type of `load_benchmark`."""

from collections.abc import Callable
from types import ModuleType

from tests.training.conftest import photos

__all__ = ["Load", "photos"]
Load = Callable[[str], ModuleType]
