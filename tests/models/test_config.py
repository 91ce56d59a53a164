"""Configurations are validated when built, and survive JSON."""

import json
from dataclasses import fields
from typing import Any

import pytest

from vit.errors import UserError
from vit.models.config import ResNetConfig, ViTConfig
from vit.models.zoo import config_from_dict

# Neither the default nor in conflict with the other fields' defaults.
CHANGED = {
    "image_size": (64, 96),
    "in_channels": 1,
    "num_classes": 5,
    "depths": (2, 2),
    "width_factor": 2,
    "ws_mode": "timm",
    "patch_size": 32,
    "width": 96,
    "depth": 5,
    "mlp_dim": 5,
    "num_heads": 6,
    "pool": "gap",
    "norm_after_pool": True,
    "class_token": True,
    "distillation_token": True,
    "num_registers": 5,
    "pos_embed": "sincos2d",
    "pos_embed_class_slot": False,
    "pos_resize": "bicubic",
    "rotary": {"shift": 0.1, "rescale": 2.0},
    "tower": {"pool_heads": 4, "final_norm": False},
    "cosine": {"projection": 12, "templates": ["a {}"]},
    "representation_size": 24,
    "dropout": 0.1,
    "drop_path": 0.1,
    "drop_path_uniform": True,
    "layer_scale": 0.1,
    "activation": "gelu",
    "pre_norm": True,
    "layer_norm_eps": 1e-5,
    "stem_depths": (1, 2),
    "variant": {"positions": {"name": "relative", "size": [2, 2]}},
}


@pytest.mark.parametrize("kind", [ViTConfig, ResNetConfig])
def test_every_field_survives_json(kind: type) -> None:
    for field in fields(kind):
        config = kind(**{field.name: CHANGED[field.name]})
        text = json.dumps(config.to_dict())
        assert config_from_dict(json.loads(text)) == config, field.name


def test_architecture_picks_the_class() -> None:
    assert ViTConfig().to_dict()["architecture"] == "vit"
    assert isinstance(config_from_dict(ResNetConfig().to_dict()), ResNetConfig)
    assert isinstance(config_from_dict({"width": 192, "num_heads": 3}), ViTConfig)
    with pytest.raises(UserError, match="architecture='lstm' is not one of \['vit', 'resnet'\]"):
        config_from_dict({"architecture": "lstm"})


MISTAKES: list[tuple[type, dict[str, Any], str]] = [
    (ViTConfig, {"width": 100, "num_heads": 3}, "width=100 is not a multiple of num_heads=3; .*99"),
    (ViTConfig, {"image_size": (8, 40)}, "image_size=8x40 .* choose 16x32"),
    (ViTConfig, {"image_size": (32, 32, 3)}, r"image_size=\(32, 32, 3\) must be one side or"),
    (ViTConfig, {"image_size": 0}, "image_size=0 must be"),
    (ViTConfig, {"representation_size": 0}, "representation_size=0 must be"),
    (ViTConfig, {"num_registers": -1}, "num_registers=-1 must be a whole number of at least 0"),
    (ViTConfig, {"pool": "mean"}, "pool='mean' is not one of 'cls', 'gap', 'map', 'cls_gap'"),
    (ViTConfig, {"class_token": False}, "pool='cls' needs class_token=true"),
    (ViTConfig, {"distillation_token": True, "pool": "gap"}, "needs pool='cls', not 'gap'"),
    (ViTConfig, {"distillation_token": True, "representation_size": 8}, "exclude each other"),
    (ViTConfig, {"norm_after_pool": True, "pool": "map"}, "needs pool='cls' or 'gap', not 'map'"),
    (ViTConfig, {"drop_path": -0.1}, r"drop_path=-0.1 must be in \[0, 1\)"),
    (ViTConfig, {"stem_depths": (2, 2, 2, 2)}, "patch_size=16 is not a multiple of 32, the stride"),
    (ResNetConfig, {"depths": ()}, r"depths=\[\] must be 1 to 4 whole numbers"),
    (ResNetConfig, {"width_factor": 0}, "width_factor=0 must be"),
]


@pytest.mark.parametrize(("kind", "values", "message"), MISTAKES)
def test_a_mistake_gets_one_line_with_the_value(
    kind: type, values: dict[str, Any], message: str
) -> None:
    config = kind()
    for name, value in values.items():
        object.__setattr__(config, name, value)
    # What the constructor runs, without the type checker of the test run.
    with pytest.raises(UserError, match=message) as caught:
        config.__post_init__()
    assert "\n" not in str(caught.value)
