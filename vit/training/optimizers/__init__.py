"""Optimizers that torch does not have, and the parameter groups that all of them get."""

from vit.training.optimizers.lamb import LAMB
from vit.training.optimizers.muon import MuonWithAdamW
from vit.training.optimizers.sgdw import SGDW

__all__ = ["LAMB", "SGDW", "MuonWithAdamW"]
