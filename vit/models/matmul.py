"""Choice of the CPU kernel for a dense layer and the GELU after it.

`F.linear` and `F.gelu` work everywhere, but have weak points on CPUs (one Zen 4 core):
- bfloat16: the bias is copied into the result before the product. oneDNN's linear adds it in the
  last step of the product, with equal bits in 0.90 to 0.97 of the time. Without gradients, that
  step also applies the GELU before rounding, which reduces errors.
- float32: MKL does not use the full width of every CPU. oneDNN takes 0.84 to 0.95 of the time
  here, 0.45 on a Zen 5. The faster one is measured once per machine (vit/models/routes.py), and
  oneDNN's errors are checked against float64.
- the tanh form of the GELU: oneDNN takes 0.4 of the time of ATen.
- weights: oneDNN and MKL convert them to their own layout in every call. `pack` converts them once
  for inference; products then take 0.85 to 0.95 of the time.
No global switch is set, and nothing happens at import. The layer stays a plain `nn.Linear`; one
that is replaced, hooked, parametrised, traced, compiled or transformed is called normally.
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

# Without these units, a CPU computes bfloat16 products one number at a time.
HAS_BFLOAT16: bool = (
    torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
)
# For products with fewer operations, or GELUs with fewer elements, the call overhead dominates.
SMALL_PRODUCT, SMALL_GELU = 2**24, 2**17
# Stride of the sample that detects changes of a packed weight; prime, to cover all columns.
SAMPLED = 251
# Minimum speed of oneDNN relative to MKL to be chosen for float32. Below 1, because packed weights,
# which are not part of the measurement, gain another 5 to 15 % in inference.
MARGIN = 0.9
# Number of paired trials in the measurement.
TRIALS = 15
# Maximum relative errors of a product and its GELU against float64; rounding to bfloat16 is 2^-9.
ERRORS = {torch.float32: 1e-6, torch.bfloat16: 2**-8}


def dense(layer: nn.Module, x: Tensor, activation: Gelu | None = None) -> Tensor:
    """`layer(x)`, `* d` to `* k`, followed by the activation, with the fastest kernel."""
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
    """A copy of a weight in oneDNN's layout."""

    state: tuple[object, ...]
    """State of the weight when it was copied."""
    copy: Tensor


# Outside the layers, so that state dicts, copies and files of the layers do not change.
_PACKED: WeakKeyDictionary[nn.Module, _Packed | None] = WeakKeyDictionary()


def pack(model: nn.Module) -> None:
    """Lets the dense layers of `model` cache their weights in oneDNN's layout.

    For repeated inference on a CPU. The first forward pass copies the weights, which doubles their
    memory; later ones skip the conversion. A changed weight is copied again. Changes are detected
    by address, version and a sample of the values, because fused optimizers and edits through
    `.data` do not change the version. An edit of few numbers through `.data` may be missed: call
    `pack` again.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear:
            _PACKED[layer] = None


def _packed(layer: nn.Module, weight: Tensor) -> Tensor:
    """The packed copy of `weight`, updated if needed."""
    if weight.is_inference():  # has no version
        return weight
    sample = weight.detach().flatten()[::SAMPLED].sum().item()
    state = (weight.data_ptr(), weight._version, weight.dtype, weight.shape, sample)
    packed = _PACKED[layer]
    if packed is None or packed.state != state:
        packed = _PACKED[layer] = _Packed(state, packed_copy(weight))
    return packed.copy


def packed_copy(weight: Tensor) -> Tensor:
    """A copy of a weight `k d` in oneDNN's layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)


def gelu(x: Tensor, form: Gelu | None) -> Tensor:
    """GELU in exact form or tanh approximation (arXiv:1606.08415, section 2); None is identity."""
    if form is None:
        return x
    if form == "gelu":
        return F.gelu(x)
    if _is_plain(x) and x.dim() > 1 and x.numel() >= SMALL_GELU and works(x.dtype):
        return _TanhGelu.apply(x)
    return F.gelu(x, approximate="tanh")


def _is_plain(x: Tensor) -> bool:
    """Whether `x` is on the CPU and no mode that needs ATen's operations is active."""
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
    """Whether computing `layer` without calling it has no visible effect."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        type(layer.weight) is type(layer.bias) is nn.Parameter
        and not any(getattr(layer, name) for name in hooks)
        and not nn.modules.module._has_any_global_hook()
    )


def _use_onednn(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether oneDNN computes this product."""
    if not x.dtype == weight.dtype == bias.dtype:
        return False
    if 2 * x.numel() * len(weight) < SMALL_PRODUCT or not works(x.dtype):
        return False
    return x.dtype == torch.bfloat16 or current_float32_route() == "onednn"


def _linear(x: Tensor, weight: Tensor, bias: Tensor, activation: Gelu | None) -> Tensor:
    """Layer and activation in one call of oneDNN."""
    if activation is None:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    form = "tanh" if activation == "gelu_tanh" else "none"
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "gelu", [], form)


class _Linear(torch.autograd.Function):
    """x W^T + b, with gradients computed by the same kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias, None)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, weight = ctx.saved_tensors
        grad, x = grads[0].flatten(0, -2), x.flatten(0, -2)  # m k, m d
        # ATen's product supports second derivatives; in bfloat16 it already uses oneDNN.
        use_onednn = x.dtype == torch.float32 and not torch.is_grad_enabled()
        multiply = product if use_onednn else torch.mm
        needed = ctx.needs_input_grad
        grad_x = multiply(grad, weight).view(*grads[0].shape[:-1], -1) if needed[0] else None
        grad_weight = multiply(grad.t(), x) if needed[1] else None
        # A product with ones accumulates in float32, like sum, in half the time.
        grad_bias = multiply(grad.new_ones(1, len(grad)), grad)[0] if needed[2] else None
        return grad_x, grad_weight, grad_bias


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b, computed by oneDNN."""
    return packed_product(a, b.t())


def packed_product(a: Tensor, weight: Tensor) -> Tensor:
    """a W^T, computed by oneDNN; the weight may be a `packed_copy`."""
    return torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")


class _TanhGelu(torch.autograd.Function):
    """Tanh GELU, forward by oneDNN, backward by ATen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _tanh_gelu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        return torch.ops.aten.gelu_backward(grads[0], *ctx.saved_tensors, approximate="tanh")


def _tanh_gelu(x: Tensor) -> Tensor:
    """oneDNN's GELU, which PyTorch exposes only fused into a convolution: a 1x1 with ones."""
    rows = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # 1 k m 1, k in a row in memory
    k = rows.shape[1]
    out = torch.ops.mkldnn._convolution_pointwise(
        rows, x.new_ones(k, 1, 1, 1), None, [0, 0], [1, 1], [1, 1], k, "gelu", [], "tanh"
    )
    return out.permute(0, 2, 3, 1).reshape(x.shape)


@cache
def works(dtype: torch.dtype) -> bool:
    """Whether these kernels exist for `dtype` with errors within ERRORS."""
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
    """Library of this process's float32 products: fixed by the run, otherwise the machine's."""
    return float32_route(lambda: "onednn" if float32_gain() > MARGIN else "aten")


def continue_on_route(route: str | None) -> str | None:
    """Fixes the route that a checkpoint records. Returns a note for the user if that is impossible.

    A route that is already fixed is kept.
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
            f"float32_route={current} was requested, but the run began with {route}: it does not "
            "continue bit by bit"
        )
    return None


def float32_gain() -> float:
    """Speed of oneDNN relative to `F.linear` in float32.

    Median over paired trials of the ratio of CPU times, which other processes disturb least.
    """
    if not works(torch.float32):
        return 0.0
    x, weight, bias = _sample(torch.float32)
    routes = (lambda: F.linear(x, weight, bias), lambda: _linear(x, weight, bias, None))
    ratios = []
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for route in routes:
            route()  # warm-up: the first call initialises the library
        for _ in range(TRIALS):
            times = []
            for route in routes:
                start = time.process_time()
                route()
                times.append(time.process_time() - start)
            ratios.append(times[0] / times[1])
    return median(ratios)


def _sample(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias for a trial; leaves the global random state alone."""
    m, d, k = 64, 3072, 192
    generator = torch.Generator().manual_seed(0)
    shapes = ((m, d), (k, d), (k,))
    x, weight, bias = (torch.randn(s, generator=generator, device="cpu") for s in shapes)
    return x.to(dtype), (weight * d**-0.5).to(dtype), bias.to(dtype)


def _error(result: Callable[[], Tensor], exact: Tensor) -> float:
    """Relative error; infinite if the kernel does not exist."""
    try:
        with torch.no_grad():
            difference = result().double() - exact
    except (RuntimeError, AttributeError):  # missing in this build of PyTorch or on this CPU
        return float("inf")
    return (difference.norm() / exact.norm()).item()
