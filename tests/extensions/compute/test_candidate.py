"""Models that are compared, by name or by shape."""

import pytest

from vit.errors import UserError
from vit.extensions.compute.candidate import baseline_name, describe, find_model, native_size
from vit.models.zoo import ZOO, model_config


def test_architectures_are_described_by_name_or_shape() -> None:
    assert describe(model_config("vit_l16", image_size=384, num_classes=3)) == "vit_l16"
    same = {"deit_ti16": "vit_ti16", "deit_s16": "vit_s16", "deit_b16": "vit_b16"}
    for name, entry in ZOO.items():
        assert describe(entry.config) == same.get(name, name)
    tiny = model_config("vit_ti16", patch_size=8, width=16, depth=1, mlp_dim=32, num_heads=1)
    assert describe(tiny) == "vit 16x1 /8"
    assert describe(model_config("bit_r50x1", depths=(1, 2))) == "bit 1-2 x1"


def test_a_baseline_has_its_published_size_or_another_one_and_another_head() -> None:
    assert native_size("torchvision/resnet50") == (224, 224)
    assert native_size("torchvision/efficientnet_b7") == (600, 600)
    model = find_model("torchvision/vit_b_32", (96, 96), 7)
    assert model.work.params == find_model("vit_b32", (96, 96), 7).work.params


def test_other_networks_and_sizes_of_torchvision_are_refused() -> None:
    for name in ("resnet5", "fasterrcnn_resnet50_fpn", "inception_v3"):
        with pytest.raises(UserError, match="unknown model 'torchvision/"):
            baseline_name(f"torchvision/{name}")
    with pytest.raises(UserError, match="square images of a multiple of 14 pixels, not 224x210"):
        find_model("torchvision/vit_h_14", (224, 210)).build()
