"""Optimizers that torch does not have, and parameter groups."""

from vit.training.optimizers.muon import MuonWithAdamW

__all__ = ["MuonWithAdamW"]
