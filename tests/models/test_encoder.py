"""The parts of an encoder layer, each against an independent implementation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.small_models import filled, random_images, relative_error
from vit.models.config import Activation
from vit.models.encoder import Attention, DropPath, Mlp


def tokens(*shape: int) -> torch.Tensor:
    return random_images(1, *shape, dtype=torch.float64)[0]


def test_attention_is_torchs_multihead_attention() -> None:
    ours = filled(Attention(24, 3)).double()
    theirs = nn.MultiheadAttention(24, 3, batch_first=True).double()
    state = ours.state_dict()
    theirs.load_state_dict(
        {
            "in_proj_weight": state["qkv.weight"],
            "in_proj_bias": state["qkv.bias"],
            "out_proj.weight": state["proj.weight"],
            "out_proj.bias": state["proj.bias"],
        }
    )
    x = tokens(2, 7, 24)
    assert relative_error(ours(x), theirs(x, x, x)[0]) < 1e-14


def test_the_two_gelus_are_the_two_formulas() -> None:
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)[:, None]
    exact = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    forms: dict[Activation, torch.Tensor] = {"gelu": exact, "gelu_tanh": tanh}
    for activation, expected in forms.items():
        mlp = Mlp(1, 1, activation).double()
        with torch.no_grad():
            for layer in (mlp.fc1, mlp.fc2):
                layer.weight.fill_(1)
                layer.bias.fill_(0)
        assert (mlp(x) - expected).abs().max() < 1e-14
    assert 4e-4 < (exact - tanh).abs().max() < 5e-4


def test_swiglu_is_silu_of_the_first_half_times_the_second() -> None:
    mlp = filled(Mlp(6, 10, "swiglu")).double()
    x = tokens(2, 3, 6)
    gate = F.linear(x, mlp.fc1.weight[:10], mlp.fc1.bias[:10])
    value = F.linear(x, mlp.fc1.weight[10:], mlp.fc1.bias[10:])
    expected = F.linear(gate * torch.sigmoid(gate) * value, mlp.fc2.weight, mlp.fc2.bias)
    assert relative_error(mlp(x), expected) < 1e-14


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer, n = DropPath(0.3), 20_000
    out = layer(torch.ones(n, 2, 3))
    first = out[:, :1, :1]
    assert torch.equal(out, first.expand_as(out))  # one draw per image
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7])
    deviation = (0.7 * 0.3 / n) ** 0.5
    assert abs((first > 0).double().mean() - 0.7) < 4 * deviation


def test_drop_path_rests_in_evaluation() -> None:
    x = tokens(4, 2, 3)
    assert DropPath(0.9).eval()(x) is x
