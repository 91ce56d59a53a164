"""BiT and the hybrids' stem, against timm and a plain version of the official code."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.small_models import filled, random_images, relative_error, small_bit, small_hybrid
from vit.errors import UserError
from vit.models.config import WsMode
from vit.models.resnet import ResNet, StdConv2d

EXACT = 1e-12


def timm_twin(model: ResNet) -> Any:
    resnetv2 = pytest.importorskip("timm.models.resnetv2")
    std_conv = pytest.importorskip("timm.layers.std_conv")

    def conv(*args: Any, **kwargs: Any) -> nn.Module:
        return std_conv.StdConv2d(*args, eps=1e-8, **kwargs)

    config = model.config
    twin = resnetv2.ResNetV2(
        layers=config.depths,
        width_factor=config.width_factor,
        num_classes=config.num_classes,
        in_chans=config.in_channels,
        stem_type="fixed",
        conv_layer=conv,
    )
    twin.double().eval().load_state_dict(model.state_dict())
    return twin


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"width_factor": 2, "depths": (1, 1)},
        {"depths": (1, 1, 1, 1)},
        {"num_classes": 0},
        {"in_channels": 1, "depths": (1,)},
    ],
)
@pytest.mark.parametrize("size", [(64, 64), (75, 49)])
def test_bit_equals_timms_at_any_size(fields: dict[str, Any], size: tuple[int, int]) -> None:
    model = small_bit(ws_mode="timm", **fields).double()
    twin = timm_twin(model)
    images = random_images(2, model.config.in_channels, *size, dtype=torch.float64)
    assert relative_error(model(images), twin(images)) < EXACT
    tokens = twin.forward_features(images).flatten(2).transpose(1, 2)
    assert relative_error(model.features(images), tokens) < EXACT


def numpy_standardized(weight: np.ndarray, mode: WsMode) -> np.ndarray:
    """vit_jax: w / (std + 1e-5); bit_pytorch: w / sqrt(var + 1e-10); timm: w / sqrt(var + 1e-8)."""
    out = np.empty_like(weight)
    for i, kernel in enumerate(weight):
        centred = kernel - kernel.mean()
        std = math.sqrt((centred**2).mean())
        if mode == "google_hybrid":
            out[i] = centred / (std + 1e-5)
        else:
            out[i] = centred / math.sqrt(std**2 + (1e-10 if mode == "google_bit" else 1e-8))
    return out


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-5])
@pytest.mark.parametrize("mode", WsMode.__args__)
def test_weight_standardisation_is_each_sources(mode: WsMode, scale: float) -> None:
    conv = filled(StdConv2d(3, 4, 3, ws_mode=mode, same=False)).double()
    with torch.no_grad():
        conv.weight.mul_(scale)
    expected = numpy_standardized(conv.weight.detach().numpy(), mode)
    assert np.abs(conv.standardized().detach().numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("mode", WsMode.__args__)
def test_ws_mode_reaches_every_layer(mode: WsMode) -> None:
    eps = 1e-6 if mode == "google_hybrid" else 1e-5
    root_alone = small_hybrid(ws_mode=mode, stem_depths=(), patch_size=8)
    for model in (small_bit(ws_mode=mode), small_hybrid(ws_mode=mode), root_alone):
        modes = {m.ws_mode for m in model.modules() if isinstance(m, StdConv2d)}
        epsilons = {m.eps for m in model.modules() if isinstance(m, nn.GroupNorm)}
        assert (modes, epsilons) == ({mode}, {eps})


def test_images_of_other_channels_are_refused() -> None:
    with pytest.raises(UserError, match=r"this model takes b c h w with c=1"):
        small_bit(in_channels=1, depths=(1,))(random_images(2, 3, 32, 32))
