"""Optimizers that torch does not have, and parameter groups."""

from vit.training.optimizers.foreach import LAMB, SGDW
from vit.training.optimizers.muon import MuonWithAdamW

__all__ = ["LAMB", "SGDW", "MuonWithAdamW"]
