"""Folders of pictures, and small trainings."""

from tests.data.conftest import make_tree
from tests.training.conftest import make_data, make_model, make_trainer, training_photos

__all__ = ["make_data", "make_model", "make_trainer", "make_tree", "training_photos"]
