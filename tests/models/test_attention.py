"""Attention by products: as exact as PyTorch's, and used only where the rule says so."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from tests.models.small_models import random_images, relative_error, small_vit
from vit.extensions.adaptation.lora import add_lora
from vit.models import attention
from vit.models.attention import attend
from vit.models.config import PRODUCT_TOKENS
from vit.models.encoder import Attention, Place

PLACE = Place(3, 3, 0)


def queries_keys_values(
    tokens: int, dtype: torch.dtype, sharpness: float = 1.0, head: int = 16
) -> tuple[Tensor, Tensor, Tensor]:
    """Strided views of one matrix for 2 images and 3 heads. `sharpness` scales the queries."""
    qkv = random_images(2, tokens, 3, 3 * head).unflatten(-1, (3, head)).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.to(dtype).unbind(0)
    return q * sharpness, k, v


def with_gradients(call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = call(*leaves)
    weight = random_images(*out.shape, seed=5).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of the tokens that are computed by products."""
    seen: list[torch.Size] = []
    apply = attention._Products.apply

    def counted(qkv: Tensor) -> Tensor:
        seen.append(qkv.shape)
        return apply(qkv)

    monkeypatch.setattr(attention, "_Products", SimpleNamespace(apply=counted))
    return seen


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("sharpness", [1.0, 8.0])
@pytest.mark.parametrize(("tokens", "head"), [(2, 16), (17, 80), (65, 64), (197, 8), (577, 16)])
def test_products_are_as_exact_as_sdpa(
    tokens: int, head: int, sharpness: float, autocast: bool, products: list[torch.Size]
) -> None:
    inputs = queries_keys_values(tokens, torch.bfloat16, sharpness, head)
    exact = with_gradients(F.scaled_dot_product_attention, tuple(x.double() for x in inputs))
    with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
        ours = with_gradients(attend, inputs)
        theirs = with_gradients(F.scaled_dot_product_attention, inputs)
    assert products == [(3, 6, tokens, head)]
    # The last rounding alone is 2^-9; errors must be within a few of these.
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert relative_error(a, e) < 1.25 * relative_error(b, e) + 2**-9
        assert a.dtype == b.dtype and a.shape == b.shape


def test_other_dtypes_many_tokens_and_inference_stay_with_sdpa(
    products: list[torch.Size],
) -> None:
    for dtype in (torch.float64, torch.float32, torch.float16):
        with_gradients(attend, queries_keys_values(9, dtype))
    with_gradients(attend, queries_keys_values(PRODUCT_TOKENS + 1, torch.bfloat16))
    frozen = queries_keys_values(9, torch.bfloat16)
    attend(*frozen)
    with torch.no_grad():
        attend(frozen[0].requires_grad_(), *frozen[1:])
    assert products == []
    attend(*frozen)
    assert len(products) == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda q: torch.jit.trace(lambda x: attend(x, x, x), (q,)),  # pyright: ignore
        lambda q: torch.func.vmap(torch.func.grad(lambda x: attend(x, x, x).sum()))(q[None]),
    ],
    ids=["trace", "vmap of grad"],
)
@pytest.mark.filterwarnings("ignore:.*(torch.jit.trace|batching rule|to a Python boolean)")
def test_what_transforms_the_computation_gets_sdpa(
    look: Callable[[Tensor], Any], products: list[torch.Size]
) -> None:
    look(queries_keys_values(9, torch.bfloat16)[0].requires_grad_())
    assert products == []


def test_exports_and_counters_see_sdpa(products: list[torch.Size]) -> None:
    layer, x = Attention(32, 4).bfloat16(), random_images(2, 9, 32).bfloat16()
    # PyTorch 2.14 has no rule for its operator on the CPU.
    sdpa = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    rules = {sdpa: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        layer(x, PLACE)
    # Four products of 32 x 32 weights, and two of 9 x 9 weights of attention.
    assert counter.get_total_flops() == 2 * 2 * (9 * 4 * 32 * 32 + 2 * 9 * 9 * 32)
    program = torch.export.export(layer, (x, PLACE))
    names = {str(node.target) for node in program.graph.nodes}
    assert "aten.scaled_dot_product_attention.default" in names
    assert products == []


def test_differentiating_twice_is_refused_not_wrong() -> None:
    q, k, v = (x.detach().requires_grad_() for x in queries_keys_values(3, torch.bfloat16))
    [first] = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def gradients(model: Any, dtype: torch.dtype) -> Tensor:
    """Of all trained parameters, from a loss in mixed precision or in float64."""
    model.zero_grad()
    images = random_images(2, 3, 32, 32).to(next(model.parameters()).dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = model(images).square().sum()
    loss.backward()
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("form", ["plain", "DINOv3", "DINOv3 with key biases", "LoRA"])
def test_every_form_of_the_model_trains_by_products(
    form: str, recompute: bool, products: list[torch.Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    biased = {"key_bias": True}
    rotary = {"DINOv3": {}, "DINOv3 with key biases": biased}.get(form)
    model = small_vit(**({} if rotary is None else {"rotary": rotary, "pos_embed": "none"}))
    if form == "LoRA":
        add_lora(model, 2)
    model.activation_checkpointing = recompute
    keys = list(model.state_dict())
    ours = gradients(model, torch.bfloat16)
    assert len(products) == len(model.blocks) * (1 + recompute)
    assert list(model.state_dict()) == keys
    monkeypatch.setattr(attention, "PRODUCT_TOKENS", 0)
    theirs = gradients(model, torch.bfloat16)
    exact = gradients(model.double(), torch.float64)
    assert relative_error(ours, exact) < 1.25 * relative_error(theirs, exact) + 2**-9
