"""What training asks of the data module."""

from typing import Any

from lightning.pytorch import Trainer


def counting_data(trainer: Trainer) -> Any | None:
    """The Trainer's data module if it counts its samples as ImageData does, else None."""
    data = getattr(trainer, "datamodule", None)
    return None if getattr(data, "consumed_samples", None) is None else data
