"""Both kernels agree; the bfloat16 one is at least as accurate as PyTorch's."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.small_models import random_images, relative_error
from vit.models import attention
from vit.models.attention import attend

needs_bfloat16 = pytest.mark.skipif(
    not attention.HAS_BFLOAT16, reason="no bfloat16 units on this CPU"
)


def queries_keys_values(
    n: int, m: int, dtype: torch.dtype, sharpness: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Strided views of one matrix, not contiguous. `sharpness` scales q and k."""
    qkv = random_images(2, max(n, m), 3, 4 * 16).unflatten(-1, (4, 16)).permute(2, 0, 3, 1, 4)
    q, k, v = qkv.to(dtype).unbind(0)
    return q[:, :, :n] * sharpness, k[:, :, :m] * sharpness, v[:, :, :m]


def with_gradients(route: Any, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = route(*leaves)
    weight = random_images(*out.shape, seed=5).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, weight)]


@pytest.mark.parametrize(("n", "m"), [(5, 5), (1, 9)])
def test_attention_is_the_softmax_of_scaled_scores(n: int, m: int) -> None:
    q, k, v = queries_keys_values(n, m, torch.float64)
    weights = torch.einsum("bhne,bhme->bhnm", q, k).div(16**0.5).exp()
    expected = torch.einsum("bhnm,bhme->bhne", weights / weights.sum(-1, keepdim=True), v)
    assert relative_error(attend(q, k, v), expected) < 1e-14


@needs_bfloat16
@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
@pytest.mark.parametrize(("n", "m"), [(17, 17), (1, 65), (197, 197), (577, 577)])
def test_bfloat16_route_is_as_accurate_as_sdpa(n: int, m: int, sharpness: float) -> None:
    inputs = queries_keys_values(n, m, torch.bfloat16, sharpness)
    exact = with_gradients(F.scaled_dot_product_attention, tuple(x.double() for x in inputs))
    theirs = with_gradients(F.scaled_dot_product_attention, inputs)
    ours = with_gradients(attend, inputs)
    # The last rounding alone is 2^-9; errors must be within a few of these.
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert relative_error(a, e) < 1.25 * relative_error(b, e) + 2**-9


@needs_bfloat16
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("at_once", [3 * 17 * 17, 100])  # 8 heads in 3, 3 and 2; less than a head
def test_scores_computed_in_parts_change_nothing(
    monkeypatch: pytest.MonkeyPatch, grad: bool, at_once: int
) -> None:
    inputs = queries_keys_values(17, 17, torch.bfloat16)
    with torch.set_grad_enabled(grad):
        route = (lambda i: with_gradients(attend, i)) if grad else (lambda i: [attend(*i)])
        whole = route(inputs)
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
        for a, b in zip(route(inputs), whole, strict=True):
            assert torch.equal(a, b)


@needs_bfloat16
def test_only_short_bfloat16_on_a_cpu_leaves_sdpa(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: Any) -> Tensor:
        calls.append(args[0].dtype)
        return sdpa(*args)

    sdpa = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(attention, "MAX_TOKENS", 20)
    for dtype in (torch.float32, torch.float64, torch.float16):
        attend(*queries_keys_values(9, 9, dtype))
    assert calls == [torch.float32, torch.float64, torch.float16]
    attend(*queries_keys_values(20, 20, torch.bfloat16))
    assert len(calls) == 3
    attend(*queries_keys_values(2, 21, torch.bfloat16))
    assert calls[3:] == [torch.bfloat16]
    monkeypatch.setattr(attention, "HAS_BFLOAT16", False)
    attend(*queries_keys_values(9, 9, torch.bfloat16))
    assert len(calls) == 5


@needs_bfloat16
def test_differentiating_twice_is_refused_not_wrong() -> None:
    q, k, v = (x.detach().requires_grad_() for x in queries_keys_values(3, 3, torch.bfloat16))
    [first] = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
