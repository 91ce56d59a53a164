"""The photos of tests/training, for benchmarks that train."""

from tests.training.conftest import photos

__all__ = ["photos"]
