"""Callbacks that recipes can name, and those of every run."""

from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.callbacks.finite import FiniteLoss
from vit.training.callbacks.invariants import ConsumedSamples, EveryImageOnce
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.callbacks.progress import RunProgress
from vit.training.callbacks.stopping import Patience, StopTogether

__all__ = [
    "ConsumedSamples",
    "EveryImageOnce",
    "FineTuneBySize",
    "FiniteLoss",
    "LinearProbe",
    "Patience",
    "RunProgress",
    "StopTogether",
]
