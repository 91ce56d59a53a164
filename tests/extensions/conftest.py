"""The command in this process, small folders of pictures, and small trainings."""

from tests.command import photos, vit
from tests.data.conftest import make_tree
from tests.training.conftest import (
    continues_bitwise,
    losses,
    make_data,
    make_model,
    make_trainer,
    save_weights,
    snapshot,
    training_photos,
)

__all__ = [
    "continues_bitwise",
    "losses",
    "make_data",
    "make_model",
    "make_trainer",
    "make_tree",
    "photos",
    "save_weights",
    "snapshot",
    "training_photos",
    "vit",
]
