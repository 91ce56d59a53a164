"""Operations of a layer: one product per weight, and no unnecessary copy.

Detects speed regressions independently of the machine's load. Bounds are upper bounds, so that a
PyTorch with fewer operations passes.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tests.kernels.fixing import every_route, exists
from tests.models.small_models import random_images
from vit.kernels import dense
from vit.kernels.accelerate import accelerate
from vit.models.encoder import Block

pytestmark = pytest.mark.skipif(not exists(torch.bfloat16), reason="no bfloat16 units on this CPU")
# Fused products that vit.kernels.dense calls by name.
LINEAR, CONVOLUTION = "mkldnn::_linear_pointwise", "mkldnn::_convolution_pointwise"


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dense, "SMALL_PRODUCT", 0)
    monkeypatch.setattr(dense, "SMALL_GELU", 0)
    with every_route("onednn", "products"):
        yield


class Operations:
    """Operations of the second call; the first may measure the machine."""

    def __init__(self, call: Callable[[], object]) -> None:
        call()
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
            call()
        self.calls = [
            (event.name, [tuple(shape) for shape in event.input_shapes])
            for event in seen.events()
            if "::" in event.name
        ]

    def count(self, *names: str) -> int:
        """Calls of operations whose names start with these."""
        return sum(name.startswith(names) for name, _ in self.calls)

    def weights(self, name: str) -> Counter[tuple[int, ...]]:
        """Shapes of the second argument of an operation."""
        return Counter(shapes[1] for called, shapes in self.calls if called == name)

    def copied(self) -> Counter[tuple[int, ...]]:
        """Shapes of the tensors that are copied or converted."""
        return Counter(shapes[0] for name, shapes in self.calls if name == "aten::copy_")


def layer() -> Block:
    torch.manual_seed(0)
    block = Block(
        width=32,
        num_heads=4,
        mlp_dim=64,
        norm=nn.LayerNorm,
        activation="gelu_tanh",
        dropout=0.0,
        drop_path=0.0,
        layer_scale=None,
    )
    return accelerate(block)


def tokens() -> Tensor:
    return random_images(2, 9, 32)


WEIGHTS = Counter(tuple(p.shape) for p in layer().parameters() if p.ndim == 2)


def elements(shapes: Counter[tuple[int, ...]]) -> int:
    return sum(count * prod(shape) for shape, count in shapes.items())


def forward(dtype: torch.dtype) -> Operations:
    block, x = layer().to(dtype), tokens().to(dtype)
    with torch.inference_mode():
        return Operations(lambda: block(x))


def test_a_float32_layer_is_four_products_and_attention_without_a_copy() -> None:
    with every_route("onednn", "plain"):
        done = forward(torch.float32)
    assert done.weights(LINEAR) == WEIGHTS and len(WEIGHTS) == 4
    assert done.count("aten::_scaled_dot_product") == 1
    assert done.count("aten::add") <= 2  # the residuals; biases are in the products
    assert not done.count("aten::mul", "aten::gelu", "aten::mm", "aten::bmm")
    assert not done.copied()


def test_a_bfloat16_layer_copies_heads_and_scores_only() -> None:
    done = forward(torch.bfloat16)
    assert done.weights(LINEAR) == WEIGHTS
    assert done.count("aten::bmm", "aten::baddbmm") == 2 and done.count("aten::_softmax") == 1
    assert not done.count("aten::addmm", "aten::gelu", "aten::mul", "aten::cat")
    assert done.count("aten::add") <= 2
    channels, length = 8, 9  # of a head
    assert {shape[-1] for shape in done.copied()} <= {channels, length}  # no tokens, no weights
    # q, k, v and the result change their layout; q and k become float32, the weights bfloat16.
    assert elements(done.copied()) <= 6 * tokens().numel() + 8 * length**2


def test_a_training_step_casts_each_weight_once_and_back() -> None:
    block, x = layer(), tokens().bfloat16().requires_grad_()

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = block(x)
        out.sum().backward()

    done = Operations(step)
    assert done.weights(LINEAR) == WEIGHTS and done.count(CONVOLUTION) <= 1
    assert done.count("aten::mm") <= 3 * len(WEIGHTS)  # gradients of input, weight and bias
    assert not done.count("aten::addmm") and done.count("aten::gelu") <= 1  # of the backward pass
    casts = done.copied()
    assert all(casts[shape] <= 2 for shape in WEIGHTS)
    activations = Counter({s: n for s, n in casts.items() if len(s) > 1 and s not in WEIGHTS})
    assert elements(activations) <= 17 * tokens().numel()
