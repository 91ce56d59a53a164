"""All routes agree, with errors like those of PyTorch's own."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.fixing import every_route
from tests.models.small_models import random_images, relative_error
from vit.kernels import attention, trials
from vit.kernels.attention import attend

ROUTES = ["products", "mixed"]
DTYPES = [torch.float32, torch.bfloat16]


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


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharpness", [1.0, 3.0, 8.0])
@pytest.mark.parametrize(("n", "m"), [(17, 17), (2, 65), (197, 197), (577, 577)])
def test_every_route_is_as_accurate_as_sdpa(
    n: int, m: int, sharpness: float, dtype: torch.dtype, route: str
) -> None:
    inputs = queries_keys_values(n, m, dtype, sharpness)
    exact = with_gradients(F.scaled_dot_product_attention, tuple(x.double() for x in inputs))
    theirs = with_gradients(F.scaled_dot_product_attention, inputs)
    with every_route("plain", route):
        ours = with_gradients(attend, inputs)
        with torch.no_grad():
            ours.append(attend(*inputs))
    # The last rounding alone is 2^-9 in bfloat16; errors must be within a few of these.
    last = 2**-9 if dtype == torch.bfloat16 else 2e-7
    for a, b, e in zip(ours, [*theirs, theirs[0]], [*exact, exact[0]], strict=True):
        assert relative_error(a, e) < 1.25 * relative_error(b, e) + last
        assert a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize(
    ("route", "grad"), [("products", True), ("products", False), ("mixed", True)]
)
@pytest.mark.parametrize("at_once", [3 * 17 * 17, 100])  # 8 heads in 3, 3 and 2; less than a head
def test_scores_computed_in_parts_change_nothing(
    monkeypatch: pytest.MonkeyPatch, grad: bool, at_once: int, route: str
) -> None:
    inputs = queries_keys_values(17, 17, torch.bfloat16)
    with torch.set_grad_enabled(grad), every_route("plain", route):
        call = (lambda i: with_gradients(attend, i)) if grad else (lambda i: [attend(*i)])
        whole = call(inputs)
        monkeypatch.setattr(attention, "SCORES_AT_ONCE", at_once)
        for a, b in zip(call(inputs), whole, strict=True):
            assert torch.equal(a, b)


def test_other_dtypes_single_queries_and_many_tokens_stay_with_sdpa(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    routes, by = [], attention._by

    def counted(route: str, *args: Any) -> Tensor:
        routes.append(route)
        return by(route, *args)

    monkeypatch.setattr(attention, "_by", counted)
    monkeypatch.setattr(attention, "SIZES", {"short": (20, 8, 20)})
    with every_route("plain", "products"):
        for dtype in (torch.float64, torch.float16):
            attend(*queries_keys_values(9, 9, dtype))
        attend(*queries_keys_values(2, 21, torch.float32))
        attend(*queries_keys_values(1, 9, torch.float32))
        inputs = queries_keys_values(20, 20, torch.float32)
        torch.compile(attend, fullgraph=True, backend="eager")(*inputs)
        assert routes == []
        attend(*inputs)
    assert routes == ["products"]


@pytest.mark.parametrize("route", ROUTES)
def test_differentiating_twice_is_refused_not_wrong(route: str) -> None:
    q, k, v = (x.detach().requires_grad_() for x in queries_keys_values(3, 3, torch.bfloat16))
    with every_route("plain", route):
        [first] = torch.autograd.grad(attend(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("gain", [(1.1, 0.01), (1.1, 0.06), (0.9, 0.01)])
def test_a_route_is_taken_where_it_gains_more_than_twice_the_spread(
    monkeypatch: pytest.MonkeyPatch, mode: str, gain: tuple[float, float]
) -> None:
    monkeypatch.setattr(trials, "paired_gain", lambda *_: gain)
    monkeypatch.setattr(trials, "ERROR_FACTOR", 3.0)
    expected = "products" if gain == (1.1, 0.01) else "plain"
    assert attention.measure(f"attention.float32.{mode}.short").route == expected


def test_a_route_with_larger_errors_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "paired_gain", lambda *_: pytest.fail("was timed"))
    monkeypatch.setattr(trials, "ERROR_FACTOR", 0.0)
    for only in (None, "products"):
        assert attention.measure("attention.float32.training.short", only).route == "plain"
