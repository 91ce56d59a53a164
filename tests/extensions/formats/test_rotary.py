"""Rotary positions against timm's tables; test_dinov3.py has the logits."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.small_models import filled, random_images, relative_error, small_vit
from vit.errors import UserError
from vit.extensions.formats.rotary import KeylessBias
from vit.models.config import ViTConfig
from vit.models.encoder import Place, rotated
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import build_model, config_from_dict

GRIDS = [(4, 4), (8, 8), (3, 7)]


def rotary_vit(**rotary: Any) -> VisionTransformer:
    return small_vit(pos_embed="none", num_registers=2, rotary=rotary)


def tables(model: VisionTransformer, grid: tuple[int, int]) -> Tensor:
    """Sine and cosine side by side, as timm has them: `n 2e`."""
    assert model.rope is not None
    rotation = model.rope(grid, torch.zeros(1))
    return torch.cat([rotation.sin, rotation.cos], dim=-1)[:, 0]


@pytest.mark.parametrize("grid", GRIDS)
def test_dinov3s_tables_are_timms_in_training_too(grid: tuple[int, int]) -> None:
    sincos = pytest.importorskip("timm.layers.pos_embed_sincos")
    moves = {"shift": 0.3, "jitter": 1.5, "rescale": 2.0}
    theirs = sincos.RotaryEmbeddingDinoV3(8, **{f"{k}_coords": v for k, v in moves.items()})
    ours = rotary_vit(**moves)
    assert (tables(ours, grid) - theirs.eval().get_embed(grid)).abs().max() < 1e-6
    ours.train()
    torch.manual_seed(3)
    expected = theirs.train().get_embed(grid)
    torch.manual_seed(3)
    assert (tables(ours, grid) - expected).abs().max() < 1e-6
    assert (expected - theirs.eval().get_embed(grid)).abs().max() > 0.05


def test_tables_are_float32_under_bfloat16() -> None:
    model = rotary_vit()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tables(model, (8, 8)), tables(rotary_vit(), (8, 8)))
        assert model(random_images(1, 3, 32, 32)).dtype == torch.bfloat16
    rotation = model.to(torch.bfloat16).rope((8, 8), torch.zeros(1, dtype=torch.bfloat16))  # pyright: ignore[reportOptionalCall]
    assert rotation.cos.dtype == torch.float32
    place = Place(8, 8, 3, rotation)
    assert rotated(torch.zeros(1, 4, 67, 8).bfloat16(), place).dtype == torch.bfloat16


def test_the_key_bias_is_masked_and_not_trained() -> None:
    model: Any = filled(build_model(rotary_vit().config))
    images = random_images(2, 3, 32, 32)
    before = model(images)
    layer = model.blocks[0].get_submodule("attn.qkv")
    assert isinstance(layer, KeylessBias)
    keys = slice(32, 64)
    with torch.no_grad():
        layer.bias[keys] = 100.0
    assert torch.equal(model(images), before)
    model.train()(images).square().sum().backward()
    assert layer.bias.grad is not None
    assert not layer.bias.grad[keys].any()
    assert layer.bias.grad[:32].all() and layer.bias.grad[64:].all()
    biased = rotary_vit(key_bias=True)
    with torch.no_grad():
        moved = biased(images)
        biased.blocks[0].get_submodule("attn.qkv").get_parameter("bias")[keys] += 1.0
        assert relative_error(biased(images), moved) > 1e-3  # a rotation makes it count


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"perod": 3}, "rotary: unknown model option 'perod'; did you mean 'period'"),
        ({"period": 0}, "rotary: period=0 must be more than 0"),
        ({"jitter": 0.5}, "rotary: jitter=0.5 must be at least 1"),
        ({"shift": -1}, "rotary: shift=-1 must be at least 0"),
        ({"rescale": float("nan")}, "rescale=nan must be a finite number"),
        ({"key_bias": 1}, "rotary: key_bias=1 must be true or false"),
        ("dinov3", "rotary='dinov3' must be an object"),
    ],
)
def test_unknown_forms_are_refused_in_one_line(rotary: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_model(config_from_dict({"rotary": rotary, "depth": 1}))
    assert "\n" not in str(caught.value)


def test_a_head_size_that_4_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of 4; width=60 with num_heads=6 makes it 10"):
        build_model(ViTConfig(width=60, num_heads=6, depth=1, rotary={}))


def test_a_network_without_its_rotation_does_not_compute() -> None:
    network = VisionTransformer(rotary_vit().config)
    with pytest.raises(UserError, match="added by build_model"):
        network(random_images(1, 3, 32, 32))
