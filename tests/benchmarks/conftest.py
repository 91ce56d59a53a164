"""The fixtures of tests/training, for benchmarks that train."""

from tests.training.conftest import make_data, make_model, make_trainer, photos

__all__ = ["make_data", "make_model", "make_trainer", "photos"]
