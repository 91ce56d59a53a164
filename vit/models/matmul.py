"""Which kernel computes a dense layer on a CPU, and the GELU behind it: one rule, in one place.

`F.linear` and `F.gelu` are right everywhere. On CPUs they have weak points (one Zen 4 core):
- bfloat16: the bias is copied into the result before the product. oneDNN's own linear adds it in
  the product's last step: the same bits in 0.90 to 0.97 of the time. Without gradients that step
  applies the GELU too, before the result is rounded, so that errors become smaller.
- float32: MKL does not use the full width of every CPU. oneDNN takes 0.84 to 0.95 of the time
  here, 0.45 on a Zen 5. Which of them a machine wants is measured once (vit/models/routes.py), and
  oneDNN's errors are checked against float64.
- the tanh form of the GELU: oneDNN's takes 0.4 of the time of ATen's.
- weights: oneDNN and MKL bring them into their own order at every call. `pack` does so once, for
  inference; products then take 0.85 to 0.95 of the time.
Nothing global is switched, and nothing happens at import. The layer stays a plain `nn.Linear`: one
that was replaced, hooked, parametrised, traced, compiled or transformed is called as it is.
Shapes: m rows, d inputs, k outputs.
"""

import time
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.routes import Float32Route, float32_route, is_fixed, use_float32_route

Gelu = Literal["gelu", "gelu_tanh"]

# A CPU without them computes bfloat16 products one number at a time.
HAS_BFLOAT16: bool = (
    torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
)
# Below so many operations of a product, or elements of a GELU, the call costs more than it saves.
SMALL_PRODUCT, SMALL_GELU = 2**24, 2**17
# Every so many numbers of a weight are looked at to see whether it is still what was packed; a
# prime, so that they lie in all columns.
SAMPLED = 251
# oneDNN's speed over MKL's from which it computes float32. Below 1, because inference with packed
# weights gains 5 to 15 % more, which the measurement does not see.
MARGIN = 0.9
# Pairs of trials that the choice is made from.
TRIALS = 15
# Relative errors against float64 that a product and its GELU may have; the rounding of a result to
# bfloat16 alone is 2^-9.
ERRORS = {torch.float32: 1e-6, torch.bfloat16: 2**-8}


def dense(layer: nn.Module, x: Tensor, activation: Gelu | None = None) -> Tensor:
    """`layer(x)`, `* d` to `* k`, and then the activation, by the fastest route."""
    if not (type(layer) is nn.Linear and _is_plain(x) and _is_unobserved(layer)):
        return gelu(layer(x), activation)
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    if not _use_onednn(x, weight, bias):
        return gelu(F.linear(x, weight, bias), activation)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        if layer in _PACKED:
            _PACKED[layer] = None
        return gelu(_Linear.apply(x, weight, bias), activation)
    if weight is layer.weight and layer in _PACKED:
        weight = _packed(layer, weight)
    return _linear(x, weight, bias, activation)


class _Packed(NamedTuple):
    """A copy of a weight in oneDNN's order."""

    state: tuple[object, ...]
    """Of the weight when it was copied."""
    copy: Tensor


# Beside the layers, not in them: their state, their copies and their files stay what they were.
_PACKED: WeakKeyDictionary[nn.Module, _Packed | None] = WeakKeyDictionary()


def pack(model: nn.Module) -> None:
    """Has the dense layers of `model` keep their weights in oneDNN's order too.

    For many forward passes on a CPU without gradients: the first one copies the weights, which then
    take their memory twice, and the others save doing so. A weight that changed is copied again.
    Changes are seen by address, version and a sample of the values, because not all of them count
    as a new version: fused optimizers' and those through `.data` do not. An edit by hand of few
    numbers through `.data` may be missed: call `pack` again.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear:
            _PACKED[layer] = None


def _packed(layer: nn.Module, weight: Tensor) -> Tensor:
    """The copy of `weight`, made if need be."""
    if weight.is_inference():  # has no version
        return weight
    sample = weight.detach().flatten()[::SAMPLED].sum().item()
    state = (weight.data_ptr(), weight._version, weight.dtype, weight.shape, sample)
    found = _PACKED[layer]
    if found is None or found.state != state:
        found = _PACKED[layer] = _Packed(state, packed_copy(weight))
    return found.copy


def packed_copy(weight: Tensor) -> Tensor:
    """`k d` in the order in which oneDNN reads it."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def gelu(x: Tensor, form: Gelu | None) -> Tensor:
    """GELU in its exact form, or by its tanh approximation (arXiv:1606.08415, section 2)."""
    if form is None:
        return x
    if form == "gelu":
        return F.gelu(x)
    if _is_plain(x) and x.dim() > 1 and x.numel() >= SMALL_GELU and works(x.dtype):
        return _TanhGelu.apply(x)
    return F.gelu(x, approximate="tanh")


def _is_plain(x: Tensor) -> bool:
    """Whether `x` is on the CPU and nobody looks on who knows ATen's operations only."""
    return (
        type(x) is Tensor
        and x.is_cpu
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and not torch._C._len_torch_dispatch_stack()  # such as a counter of operations
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def _is_unobserved(layer: nn.Module) -> bool:
    """Whether nobody would notice that `layer` is computed without being called."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        type(layer.weight) is type(layer.bias) is nn.Parameter
        and not any(getattr(layer, name) for name in hooks)
        and not nn.modules.module._has_any_global_hook()
    )


def _use_onednn(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """The rule: whether oneDNN computes this product."""
    if not x.dtype == weight.dtype == bias.dtype:
        return False
    if 2 * x.numel() * len(weight) < SMALL_PRODUCT or not works(x.dtype):
        return False
    return x.dtype == torch.bfloat16 or current_float32_route() == "onednn"


def _linear(x: Tensor, weight: Tensor, bias: Tensor, activation: Gelu | None) -> Tensor:
    """The layer and its activation in one call of oneDNN."""
    if activation is None:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    form = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], form)


class _Linear(torch.autograd.Function):
    """x W^T + b with the gradients by the same kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, weight = ctx.saved_tensors
        grad, x = grads[0].flatten(0, -2), x.flatten(0, -2)  # m k, m d
        # ATen's product is differentiable once more, and oneDNN's already in bfloat16.
        own = x.dtype == torch.float32 and not torch.is_grad_enabled()
        multiply = product if own else torch.mm
        wanted = ctx.needs_input_grad
        grad_x = multiply(grad, weight).view(*grads[0].shape[:-1], -1) if wanted[0] else None
        grad_weight = multiply(grad.t(), x) if wanted[1] else None
        # A product with ones sums in float32, like sum, in half of its time.
        grad_bias = multiply(grad.new_ones(1, len(grad)), grad)[0] if wanted[2] else None
        return grad_x, grad_weight, grad_bias


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b by oneDNN."""
    return packed_product(a, b.t())


def packed_product(a: Tensor, weight: Tensor) -> Tensor:
    """a W^T by oneDNN, of a weight that may be a `packed_copy`."""
    return torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")


class _TanhGelu(torch.autograd.Function):
    """The tanh form forward by oneDNN, backward by ATen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _tanh_gelu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        return torch.ops.aten.gelu_backward(grads[0], *ctx.saved_tensors, approximate="tanh")


def _tanh_gelu(x: Tensor) -> Tensor:
    """oneDNN's GELU, which PyTorch gives us as the last step of a convolution: one by ones."""
    rows = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # 1 k m 1, k in a row in memory
    k = rows.shape[1]
    out = torch.ops.mkldnn._convolution_pointwise(
        rows, x.new_ones(k, 1, 1, 1), None, [0, 0], [1, 1], [1, 1], k, "gelu", [], "tanh"
    )
    return out.permute(0, 2, 3, 1).reshape(x.shape)


@cache
def works(dtype: torch.dtype) -> bool:
    """Whether these kernels are there for `dtype` and their errors are within ERRORS."""
    if not torch.backends.mkldnn.is_available() or dtype not in ERRORS:
        return False
    if dtype == torch.bfloat16 and not HAS_BFLOAT16:
        return False
    x, weight, bias = _sample(dtype)
    wide = [t.double() for t in (x, weight, bias)]
    exact = F.linear(*wide)

    def packed() -> Tensor:
        return _linear(x, packed_copy(weight), bias, None)

    tanh = F.gelu(wide[0], approximate="tanh")
    pairs: list[tuple[Callable[[], Tensor], Tensor]] = [
        (lambda: _linear(x, weight, bias, None), exact),
        (packed, exact),
        (lambda: _linear(x, weight, bias, "gelu"), F.gelu(exact)),
        (lambda: _linear(x, weight, bias, "gelu_tanh"), F.gelu(exact, approximate="tanh")),
        (lambda: _tanh_gelu(x), tanh),
    ]
    return all(_error(result, expected) < ERRORS[dtype] for result, expected in pairs)


def current_float32_route() -> Float32Route:
    """The library of this process's float32 products: fixed by the run, else the machine's."""
    return float32_route(lambda: "onednn" if float32_gain() > MARGIN else "aten")


def continue_on_route(route: str | None) -> str | None:
    """Takes up the route that a checkpoint records; a note for the user where that cannot be done.

    A route that was fixed before stays.
    """
    if route is not None and not is_fixed():
        use_float32_route(route)
        return None
    current = current_float32_route()
    if route is None:
        return (
            f"the checkpoint does not record which library computed float32; {current} does now, "
            "and the last bits may differ"
        )
    if route != current:
        return (
            f"float32_route={current} was asked for and the run began with {route}: it does not "
            "continue bit by bit"
        )
    return None


def float32_gain() -> float:
    """How many times as fast as `F.linear` oneDNN is in float32.

    The median over pairs of trials of the ratio of CPU times, which other processes disturb least.
    """
    if not works(torch.float32):
        return 0.0
    x, weight, bias = _sample(torch.float32)
    routes = (lambda: F.linear(x, weight, bias), lambda: _linear(x, weight, bias, None))
    ratios = []
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for route in routes:
            route()  # the first call initialises the library
        for _ in range(TRIALS):
            times = []
            for route in routes:
                start = time.process_time()
                route()
                times.append(time.process_time() - start)
            ratios.append(times[0] / times[1])
    return median(ratios)


def _sample(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias for a trial; the global random numbers are left alone."""
    m, d, k = 64, 3072, 192
    generator = torch.Generator().manual_seed(0)
    shapes = ((m, d), (k, d), (k,))
    x, weight, bias = (torch.randn(s, generator=generator, device="cpu") for s in shapes)
    return x.to(dtype), (weight * d**-0.5).to(dtype), bias.to(dtype)


def _error(result: Callable[[], Tensor], exact: Tensor) -> float:
    """Relative error; infinite where there is no such kernel."""
    try:
        with torch.no_grad():
            difference = result().double() - exact
    except (RuntimeError, AttributeError):  # not in this build of PyTorch, or not for this CPU
        return float("inf")
    return (difference.norm() / exact.norm()).item()
