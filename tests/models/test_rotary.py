"""Rotary positions against timm's and transformers' code, a loop in NumPy, and their own claims."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.models.small_models import filled, random_images, relative_error, small_vit
from vit.errors import UserError
from vit.models.config import Rotary, ViTConfig
from vit.models.encoder import Block, KeylessBias
from vit.models.rotary import Rotation, rotated
from vit.models.vision_transformer import VisionTransformer
from vit.models.zoo import config_from_dict
from vit.training.optimizers.groups import param_groups

GRIDS = [(4, 4), (8, 8), (3, 7)]


def rotary_vit(**rotary: Any) -> VisionTransformer:
    return small_vit(pos_embed="none", num_registers=2, rotary=Rotary(**rotary))


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


def test_pairs_of_channels_are_turned_by_their_angle() -> None:
    """Complex numbers in NumPy: a pair is a number, a rotation a product with e^(i angle)."""
    model = rotary_vit()
    assert model.rope is not None
    rotation = model.rope((2, 3), torch.zeros(1, dtype=torch.float64))
    x = random_images(2, 4, 3 + 6, 8, dtype=torch.float64)
    sin, cos = (
        np.broadcast_to(t.detach().numpy(), (6, 4, 8)).swapaxes(0, 1) for t in rotation[1::-1]
    )
    first, second = slice(0, 4), slice(4, 8)
    expected = x.numpy().copy()
    numbers = expected[:, :, 3:, first] + 1j * expected[:, :, 3:, second]
    turned = numbers * (cos + 1j * sin)[:, :, first]
    expected[:, :, 3:, first], expected[:, :, 3:, second] = turned.real, turned.imag
    assert rotation.num_prefix == 3
    assert np.abs(rotated(x, rotation).detach().numpy() - expected).max() < 1e-14


def test_scores_depend_on_offsets_only() -> None:
    """The grid is shifted: every patch's row and column change, and no score between patches."""
    model = rotary_vit()
    assert model.rope is not None
    q, k = (random_images(1, 4, 6, 8, dtype=torch.float64, seed=s) for s in (1, 2))

    def scores(top: int, left: int) -> Tensor:
        """Of 2 x 3 patches whose first one is at (top, left) of a grid of 8 x 9."""
        rotation = model.rope((8, 9), q)  # pyright: ignore[reportOptionalCall]
        places = [9 * (top + i) + left + j for i in range(2) for j in range(3)]
        cos, sin = (table[places] for table in rotation[:2])
        part = Rotation(cos, sin, 0)
        return rotated(q, part) @ rotated(k, part).mT

    assert (scores(0, 0) - scores(5, 6)).abs().max() < 1e-5 * scores(0, 0).abs().max()
    assert (scores(0, 0) - q @ k.mT).abs().max() > 0.1


def test_tables_are_float32_under_bfloat16() -> None:
    model = rotary_vit()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(tables(model, (8, 8)), tables(rotary_vit(), (8, 8)))
        assert model(random_images(1, 3, 32, 32)).dtype == torch.bfloat16
    rotation = model.to(torch.bfloat16).rope((8, 8), torch.zeros(1, dtype=torch.bfloat16))  # pyright: ignore[reportOptionalCall]
    assert rotation.cos.dtype == torch.float32
    assert rotated(torch.zeros(1, 4, 67, 8).bfloat16(), rotation).dtype == torch.bfloat16


def test_the_key_bias_is_masked_and_not_trained() -> None:
    model = filled(VisionTransformer(rotary_vit().config))
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


def test_a_training_step_leaves_the_key_bias_at_zero() -> None:
    model = VisionTransformer(rotary_vit(rescale=2.0).config).train()
    groups = param_groups(model.named_parameters(), depth=3)
    for group in groups:
        del group["names"], group["lr_scale"]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)
    for _ in range(3):
        model(random_images(2, 3, 32, 32)).square().sum().backward()
        optimizer.step()
    for block in model.blocks:
        assert isinstance(block, Block)
        assert not block.attn.qkv.bias[32:64].any()


def test_coordinates_move_in_training_only() -> None:
    images = random_images(2, 3, 32, 32)
    for moves in ({"shift": 1.0}, {"jitter": 2.0}, {"rescale": 2.0}):
        model = rotary_vit(**moves)
        assert torch.equal(model(images), rotary_vit()(images))
        model.train()
        assert not torch.equal(model(images), model(images)), moves
    still = rotary_vit().train()
    assert torch.equal(still(images), still(images))


def test_the_fields_of_a_vit_are_these() -> None:
    """A field is a mechanism: one more needs published weights that are loaded here."""
    assert [field.name for field in fields(ViTConfig)] == [
        *("image_size", "patch_size", "in_channels", "num_classes", "width", "depth", "mlp_dim"),
        *("num_heads", "pool", "norm_after_pool", "class_token", "distillation_token"),
        *("num_registers", "pos_embed", "pos_embed_class_slot", "pos_resize", "rotary"),
        *("representation_size", "dropout", "drop_path", "drop_path_uniform", "layer_scale"),
        *("activation", "layer_norm_eps", "stem_depths", "ws_mode"),
    ]


@pytest.mark.parametrize(
    ("rotary", "message"),
    [
        ({"perod": 3}, "rotary: unknown model option 'perod'; did you mean 'period'"),
        ({"period": 0}, "rotary: period=0 must be more than 0"),
        ({"period": "long"}, "rotary: period='long' must be a finite number"),
        ({"jitter": 0.5}, "rotary: jitter=0.5 must be at least 1"),
        ({"shift": -1}, "rotary: shift=-1 must be at least 0"),
        ({"rescale": float("nan")}, "rescale=nan must be a finite number"),
        ({"key_bias": 1}, "rotary: key_bias=1 must be true or false"),
        ("dinov3", "rotary='dinov3' must be an object"),
    ],
)
def test_unknown_forms_are_refused_in_one_line(rotary: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        config_from_dict({"rotary": rotary})
    assert "\n" not in str(caught.value)


def test_a_head_size_that_4_does_not_divide_is_refused() -> None:
    with pytest.raises(UserError, match="multiple of 4; width=60 with num_heads=6 makes it 10"):
        ViTConfig(width=60, num_heads=6, rotary=Rotary())
