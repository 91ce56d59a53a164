"""What a layer asks of PyTorch: regressions of speed seen in counts, which no load disturbs."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.models.small_models import random_images
from vit.models import matmul, routes
from vit.models.encoder import Block

pytestmark = pytest.mark.skipif(
    not matmul.works(torch.bfloat16), reason="no bfloat16 units on this CPU"
)
LINEAR, CONVOLUTION = "mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise"


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(matmul, "SMALL_GELU", 0)
    monkeypatch.setattr(routes, "_forced", "onednn")


def operations(call: Callable[[], object]) -> Counter[str]:
    """How often each operation runs in the second call; the first may try the machine."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    return Counter(event.name for event in found.events() if "::" in event.name)


def layer() -> Block:
    torch.manual_seed(0)
    return Block(
        width=32,
        num_heads=4,
        mlp_dim=64,
        norm=nn.LayerNorm,
        activation="gelu_tanh",
        dropout=0.0,
        drop_path=0.0,
        layer_scale=None,
    )


def tokens() -> Tensor:
    return random_images(2, 9, 32)


def forward(dtype: torch.dtype) -> Counter[str]:
    block, x = layer().to(dtype), tokens().to(dtype)
    with torch.inference_mode():
        return operations(lambda: block(x))


def test_a_float32_layer_is_four_products_and_attention_without_a_copy() -> None:
    found = forward(torch.float32)
    assert found[LINEAR] == 4
    assert found["aten::_scaled_dot_product_flash_attention_for_cpu"] == 1
    assert found["aten::add"] == 2
    for name in ("aten::copy_", "aten::addmm", "aten::gelu", "aten::mul"):
        assert not found[name], name


def test_a_bfloat16_layer_copies_heads_and_scores_only() -> None:
    found = forward(torch.bfloat16)
    assert found[LINEAR] == 4
    assert found["aten::bmm"] == found["aten::baddbmm"] == found["aten::_softmax"] == 1
    # q, k, v and the result change their layout; q and k become float32, the weights bfloat16.
    assert found["aten::copy_"] == 7
    assert found["aten::add"] == 2
    for name in ("aten::addmm", "aten::gelu", "aten::mul", "aten::cat"):
        assert not found[name], name


def test_a_training_step_casts_each_weight_once_and_back() -> None:
    block, x = layer(), tokens().bfloat16().requires_grad_()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = block(x)
        out.sum().backward()

    found = operations(step)
    assert (found[LINEAR], found[CONVOLUTION]) == (4, 1)
    assert found["aten::mm"] == 12  # gradients of input, weight and bias
    assert found["aten::_to_copy"] <= 22
    assert found["aten::copy_"] <= 32
    for name in ("aten::addmm", "aten::gelu"):
        assert not found[name], name
