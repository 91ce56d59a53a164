"""Models that are built without their weights."""

import torch

from vit.checkpoints.building import build_empty
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import build_model


def test_an_empty_model_has_the_full_models_names_and_shapes_but_no_memory() -> None:
    plain = ViTConfig(image_size=32, patch_size=8, width=768, depth=4, activation="gelu")
    hybrid = ViTConfig(image_size=32, patch_size=16, width=32, mlp_dim=40, depth=1, num_heads=4)
    hybrid = ViTConfig.from_dict({**hybrid.to_dict(), "stem_depths": [1, 1], "pool": "map"})
    for config in (plain, hybrid, ResNetConfig(depths=(1, 1))):
        empty = build_empty(config).state_dict()
        assert {tensor.device.type for tensor in empty.values()} == {"meta"}
        with torch.device("meta"):
            full = build_model(config).state_dict()
        assert {k: v.shape for k, v in empty.items()} == {k: v.shape for k, v in full.items()}
