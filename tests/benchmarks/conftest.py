"""The photos of tests/training, for benchmarks that train."""

from tests.training.conftest import training_photos

__all__ = ["training_photos"]
