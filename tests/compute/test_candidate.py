"""Models that are compared, by name or by shape."""

from vit.compute.candidate import describe
from vit.models.config import ViTConfig
from vit.models.zoo import model_config

TINY = ViTConfig(
    image_size=16, patch_size=8, width=16, depth=1, mlp_dim=32, num_heads=1, num_classes=3
)


def test_architectures_are_described_by_name_or_shape() -> None:
    assert describe(model_config("vit_l16", image_size=384, num_classes=3)) == "vit_l16"
    assert describe(model_config("r26_vit_s32")) == "r26_vit_s32"
    assert describe(TINY) == "vit 16x1 /8"
    assert describe(model_config("bit_r50x1", depths=(1, 2))) == "bit 1-2 x1"
