"""The photos of tests/training, for benchmarks that train, and the type of `load_benchmark`."""

from collections.abc import Callable
from types import ModuleType

from tests.training.conftest import training_photos

__all__ = ["Load", "training_photos"]
Load = Callable[[str], ModuleType]
