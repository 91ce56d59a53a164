"""Small trainings."""

from tests.training.conftest import (
    continues_bitwise,
    encoder_continues_bitwise,
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
    "encoder_continues_bitwise",
    "losses",
    "make_data",
    "make_model",
    "make_trainer",
    "save_weights",
    "snapshot",
    "training_photos",
]
