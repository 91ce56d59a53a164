"""Weights beside the checkout, a server of files, and a small model."""

from tests.weights.conftest import server, shared_weights
from vit.models.config import ViTConfig

__all__ = ["server", "shared_weights"]
TINY = ViTConfig(
    image_size=16, patch_size=8, width=32, depth=1, mlp_dim=40, num_heads=4, num_classes=2
)
