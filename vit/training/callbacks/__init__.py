"""What happens beside a run's steps. The names here are those that a recipe can give."""

from vit.training.callbacks.by_size import FineTuneBySize
from vit.training.callbacks.ema import EMA
from vit.training.callbacks.finite import FiniteLoss, LossSpikes
from vit.training.callbacks.hyperrule import BiTHyperRule
from vit.training.callbacks.invariants import ConsumedSamples, EveryImageOnce
from vit.training.callbacks.linear_probe import LinearProbeFirst
from vit.training.callbacks.progress import RunProgress
from vit.training.callbacks.stopping import StopTogether
from vit.training.callbacks.watching import WatchProcesses

__all__ = [
    "EMA",
    "BiTHyperRule",
    "ConsumedSamples",
    "EveryImageOnce",
    "FineTuneBySize",
    "FiniteLoss",
    "LinearProbeFirst",
    "LossSpikes",
    "RunProgress",
    "StopTogether",
    "WatchProcesses",
]
