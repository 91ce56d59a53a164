"""oneDNN's dense layers: as exact as PyTorch's, and used only without visible effects."""

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tests.kernels.fixing import every_route, exists
from tests.models.small_models import (
    random_images,
    relative_error,
    small_bit,
    small_hybrid,
    small_vit,
)
from vit.kernels import dense as kernels
from vit.kernels import packing, trials
from vit.kernels.accelerate import accelerate
from vit.kernels.dense import Gelu, dense, gelu
from vit.kernels.packing import pack

FORMS: list[Gelu | None] = [None, "gelu", "gelu_tanh"]
DTYPES = [
    pytest.param(
        dtype,
        marks=pytest.mark.skipif(not exists(dtype), reason=f"no such kernel for {dtype}"),
    )
    for dtype in (torch.float32, torch.bfloat16)
]
# Relative errors of a product and its GELU against float64; rounding to bfloat16 is 2^-9.
ERRORS = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
needs_float32 = pytest.mark.skipif(not exists(torch.float32), reason="no oneDNN")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.dtype]]:
    """oneDNN takes products of any size here; the list has the dtype of each."""
    seen, kernel = [], kernels._linear

    def counted(x: Tensor, *rest: Any) -> Tensor:
        seen.append(x.dtype)
        return kernel(x, *rest)

    with every_route("onednn"):
        monkeypatch.setattr(kernels, "_linear", counted)
        monkeypatch.setattr(kernels, "SMALL_PRODUCT", 0)
        monkeypatch.setattr(kernels, "SMALL_GELU", 0)
        yield seen


def layer_and_input(dtype: torch.dtype = torch.float32) -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(96, 160).to(dtype), random_images(3, 7, 96, dtype=torch.float64).to(dtype)


def plain(layer: nn.Module, x: Tensor, form: Gelu | None) -> Tensor:
    """Reference for `dense`, by PyTorch's operations."""
    out = layer(x)
    return out if form is None else F.gelu(out, approximate="tanh" if form != "gelu" else "none")


def with_gradients(route: Callable[..., Tensor], layer: nn.Module, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    out = route(layer, x)
    weight = random_images(*out.shape, seed=5).to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [x, *layer.parameters()], weight)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_and_gradients_are_as_exact_as_pytorchs(
    dtype: torch.dtype, form: Gelu | None, calls: list[torch.dtype]
) -> None:
    layer, x = layer_and_input(dtype)
    wide, _ = layer_and_input(dtype)
    wide.double()
    exact = with_gradients(lambda m, v: plain(m, v, form), wide, x.double())
    theirs = with_gradients(lambda m, v: plain(m, v, form), layer, x)
    ours = with_gradients(lambda m, v: dense(m, v, form), layer, x)
    assert calls == [dtype]
    with torch.no_grad():
        ours, theirs, exact = (
            [*ours, dense(layer, x, form)],
            [*theirs, theirs[0]],
            [*exact, exact[0]],
        )
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert relative_error(a, e) < 1.5 * relative_error(b, e) + ERRORS[dtype] / 8
        assert a.dtype == b.dtype and a.stride() == b.stride()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gelu_of_an_unrounded_product_is_the_more_exact_one(dtype: torch.dtype) -> None:
    layer, x = layer_and_input(dtype)
    wide = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    with torch.no_grad():
        for form in ("gelu", "gelu_tanh"):
            exact = F.gelu(wide, approximate="none" if form == "gelu" else "tanh")
            fused = relative_error(dense(layer, x, form), exact)
            assert fused < relative_error(plain(layer, x, form), exact) + 2e-7


@pytest.mark.parametrize("shape", [(5, 40), (2, 3, 40)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tanh_form_by_a_convolution_is_the_formula(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = (3 * random_images(*shape)).to(dtype).transpose(0, -2).requires_grad_()
    with torch.no_grad():
        assert kernels._TanhGelu.apply(x).shape == x.shape
    wide = x.detach().double().requires_grad_()
    exact = 0.5 * wide * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)))
    ours = gelu(x, "gelu_tanh")
    assert "TanhGelu" in type(ours.grad_fn).__name__
    assert relative_error(ours, exact) < ERRORS[dtype]
    [a] = torch.autograd.grad(ours.sum(), x)
    [b] = torch.autograd.grad(exact.sum(), wide)
    assert relative_error(a, b) < ERRORS[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_computes_in_its_dtype_and_returns_gradients_in_the_parameters(
    dtype: torch.dtype, calls: list[torch.dtype]
) -> None:
    if dtype != torch.bfloat16:
        pytest.skip("autocast on CPUs is for the small dtypes")
    layer, x = layer_and_input()
    with torch.autocast("cpu", torch.bfloat16):
        ours = with_gradients(dense, layer, x)
        theirs = with_gradients(lambda m, v: m(v), layer, x)
        assert dense(layer.double(), x.double()).dtype == torch.float64
    assert calls == [torch.bfloat16]
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert relative_error(a, b) < 2**-8


@needs_float32
def test_second_derivatives_are_right(calls: list[torch.dtype]) -> None:
    layer, x = layer_and_input()

    def second(route: Callable[..., Tensor], layer: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        [first] = torch.autograd.grad(
            route(layer, x, "gelu_tanh").square().sum(), x, create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), layer.get_parameter("weight"))[0]

    ours = second(dense, layer, x)
    assert len(calls) == 1
    assert relative_error(ours, second(plain, layer.double(), x.double())) < 1e-5


@needs_float32
def test_whoever_looks_on_finds_pytorchs_own_layer(calls: list[torch.dtype]) -> None:
    layer, x = layer_and_input()
    seen = []
    hooks = (
        layer.register_forward_hook,
        layer.register_forward_pre_hook,
        layer.register_full_backward_hook,
        nn.modules.module.register_module_forward_hook,
    )
    for register in hooks:
        handle = register(lambda *_: seen.append(1))
        dense(layer, x.clone().requires_grad_()).sum().backward()
        handle.remove()
    assert len(seen) == len(hooks)

    with FlopCounterMode(display=False) as counter:
        dense(layer, x)
    assert counter.get_total_flops() == 2 * 21 * 96 * 160
    torch.func.vmap(torch.func.grad(lambda v: dense(layer, v).sum()))(x)
    torch.func.jvp(lambda v: dense(layer, v, "gelu_tanh"), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dense(layer, torch.autograd.forward_ad.make_dual(x, x))
    torch.compile(dense, fullgraph=True, backend="eager")(layer, x)
    assert calls == []
    dense(layer, x)
    assert calls == [torch.float32]


class Adapted(nn.Linear):
    """A layer replaced by an adapter or a quantiser."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


@needs_float32
def test_a_replaced_or_parametrised_layer_is_called(calls: list[torch.dtype]) -> None:
    layer, x = layer_and_input()
    expected = layer(x) + 1
    adapted = Adapted(96, 160)
    adapted.load_state_dict(layer.state_dict())
    assert torch.equal(dense(adapted, x), expected)
    doubled = nn.utils.parametrizations.spectral_norm(nn.Linear(96, 160)).eval()
    assert torch.equal(dense(doubled, x), doubled(x))
    without = nn.Linear(96, 160, bias=False)
    assert torch.equal(dense(without, x), without(x))
    assert calls == []


def test_other_dtypes_and_small_products_stay_with_pytorch(
    monkeypatch: pytest.MonkeyPatch, calls: list[torch.dtype]
) -> None:
    for dtype in (torch.float64, torch.float16):
        layer, x = layer_and_input(dtype)
        assert torch.equal(dense(layer, x), layer(x))
    monkeypatch.setattr(kernels, "SMALL_PRODUCT", 2 * 21 * 96 * 160 + 1)
    layer, x = layer_and_input()
    assert torch.equal(dense(layer, x), layer(x))
    assert calls == []


def test_a_route_that_is_missing_or_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Tensor:
        raise NotImplementedError

    def wrong(x: Tensor, weight: Tensor, bias: Tensor, form: Gelu | None = None) -> Tensor:
        return gelu(F.linear(x, weight, bias), form) * 1.00001

    monkeypatch.setattr(trials, "paired_gain", lambda *_: (2.0, 0.1))  # far faster
    for kernel, route in ((missing, "plain"), (wrong, "plain"), (exact, "onednn")):
        monkeypatch.setattr(kernels, "_linear", kernel)
        for only in (None, "onednn"):
            for key in (
                "dense.float32.inference.narrow",
                "dense.float32.training.narrow",
                "dense_gelu.float32.inference.narrow.gelu",
                "dense_gelu.float32.inference.wide.gelu_tanh",
            ):
                assert kernels.measure(key, only).route == route


def exact(x: Tensor, weight: Tensor, bias: Tensor, form: Gelu | None = None) -> Tensor:
    out = F.linear(x, weight, bias)
    return out if form is None else F.gelu(out, approximate="tanh" if form != "gelu" else "none")


def test_a_measurement_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    for key in ("dense.float32.training.narrow", "tanh_gelu.float32"):
        assert kernels.measure(key).route in ("plain", "onednn")
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("build", [small_vit, small_hybrid, small_bit])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "swiglu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_of_every_route_are_near_float64(
    dtype: torch.dtype, activation: str, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if build is small_bit and activation != "gelu":
        pytest.skip("a ResNet has no GELU")
    fields = {} if build is small_bit else {"activation": activation, "pool": "map"}
    images = random_images(2, 3, 64, 64)
    with torch.no_grad():
        exact = build(**fields).double()(images.double())
        errors = []
        for smallest in (0, 2**60):  # oneDNN, then PyTorch's own kernels
            monkeypatch.setattr(kernels, "SMALL_PRODUCT", smallest)
            monkeypatch.setattr(kernels, "SMALL_GELU", smallest)
            model = accelerate(build(**fields))
            whole = relative_error(model.to(dtype)(images.to(dtype)), exact)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                mixed = relative_error(accelerate(build(**fields))(images), exact)
            errors.append((whole, mixed))
    for ours, theirs in zip(*errors, strict=True):
        assert ours < (1e-6 if dtype == torch.float32 else 0.03)
        assert ours < 2 * theirs


@pytest.fixture
def packed_calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each product used a packed weight."""
    seen, kernel = [], kernels._linear

    def watched(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        seen.append(weight.is_mkldnn)
        return kernel(x, weight, *rest)

    monkeypatch.setattr(kernels, "_linear", watched)
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_weights_give_results_as_exact(
    packed_calls: list[bool], dtype: torch.dtype, form: Gelu | None
) -> None:
    layer, x = layer_and_input(dtype)
    pack(layer)
    with torch.inference_mode():
        found = dense(layer, x, form)
    assert packed_calls == [True]
    exact = plain(layer.double(), x.double(), form)
    assert relative_error(found, exact) < ERRORS[dtype]


def step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()


@needs_float32
@pytest.mark.parametrize(
    "change",
    [
        lambda layer: nn.init.normal_(layer.weight),
        lambda layer: layer.load_state_dict(nn.Linear(192, 192).state_dict()),
        lambda layer: layer.load_state_dict(nn.Linear(192, 192).state_dict(), assign=True),
        lambda layer: setattr(layer, "weight", nn.Parameter(torch.randn(192, 192))),
        lambda layer: setattr(layer.weight, "data", torch.randn(192, 192)),
        lambda layer: layer.weight.data.mul_(0.9),
        lambda layer: layer.weight.data.copy_(torch.randn(192, 192)),
        lambda layer: layer.bfloat16().float(),
        lambda layer: step(torch.optim.SGD(layer.parameters(), lr=1.0)),
        lambda layer: step(torch.optim.SGD(layer.parameters(), lr=1.0, fused=True)),
        lambda layer: step(torch.optim.AdamW(layer.parameters(), lr=1.0, fused=True)),
    ],
)
def test_a_changed_weight_is_not_computed_with_its_old_copy(
    packed_calls: list[bool], change: Callable[[nn.Linear], object]
) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(192, 192), torch.randn(5, 192)
    pack(layer)
    for parameter in layer.parameters():
        parameter.grad = torch.randn_like(parameter)
    with torch.no_grad():
        for turn in range(3):  # addresses may come back
            before = dense(layer, x)
            change(layer)
            found, expected = dense(layer, x), F.linear(x, layer.weight, layer.bias)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert turn or not torch.allclose(found, before, rtol=1e-4, atol=1e-4)
    assert packed_calls == [True] * 6


@needs_float32
def test_training_and_autocast_compute_with_the_weights_themselves(
    packed_calls: list[bool],
) -> None:
    layer, x = layer_and_input()
    pack(layer)
    dense(layer, x).sum().backward()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        dense(layer, x)
    calls = list(packed_calls)
    assert len(calls) == 1 + exists(torch.bfloat16) and not any(calls)


@needs_float32
def test_a_weight_is_copied_once_and_not_kept_while_training(
    packed_calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = layer_and_input()
    pack(layer)
    copies: list[Tensor | None] = []
    for route in (torch.no_grad(), torch.inference_mode()):
        with route:
            dense(layer, x)
        kept = packing._PACKED[layer]
        assert kept is not None
        copies.append(kept.copy)
    assert copies[0] is copies[1] and packed_calls == [True, True]
    dense(layer, x).sum().backward()
    assert packing._PACKED[layer] is None


@needs_float32
def test_a_packed_model_is_saved_and_copied_as_before(packed_calls: list[bool]) -> None:
    model = accelerate(small_vit()).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = random_images(2, 3, *model.config.size)
    with torch.no_grad():
        plain_logits = model(images)
        pack(model)
        packed_calls.clear()
        torch.testing.assert_close(model(images), plain_logits, rtol=1e-4, atol=1e-5)
        assert packed_calls and all(packed_calls)
        torch.testing.assert_close(copy.deepcopy(model)(images), plain_logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(pickle.loads(pickle.dumps(model))(images), plain_logits)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    gc.collect()
    kept = len(packing._PACKED)
    layers = sum(type(layer) is nn.Linear for layer in model.modules())
    assert kept >= layers
    del model
    gc.collect()
    assert len(packing._PACKED) == kept - layers  # the copies go with the model
