"""Dense layers and the GELU after them, by PyTorch's operations or oneDNN's.

`F.linear` and `F.gelu` work everywhere, but have weak points on CPUs:
- the bias of a bfloat16 layer is copied into the result before the product. oneDNN's linear adds it
  in the last step of the product, with equal bits, and without gradients can apply the GELU there
  before rounding, which reduces errors ("dense_gelu").
- float32: MKL does not use the full width of every CPU.
- the tanh form of the GELU takes several passes in ATen.
Which route is faster differs between machines, so it is measured (vit/kernels/trials.py).
No global switch is set. The layer stays a plain `nn.Linear`; one that is replaced, hooked,
parametrised, traced, compiled or transformed is called normally.
Shapes: m rows, d inputs, k outputs.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.kernels import packing, trials
from vit.kernels.routes import PLAIN, Choice, route_of
from vit.models.config import Activation
from vit.models.encoder import KeylessBias, activate

Gelu = Literal["gelu", "gelu_tanh"]

# For products with fewer operations, or GELUs with fewer elements, the call overhead dominates.
SMALL_PRODUCT, SMALL_GELU = 2**24, 2**17
# Layers with fewer inputs or outputs are the class "narrow". With as many inputs as DEEP the sums
# are long, and their errors differ between libraries.
WIDE, DEEP = 512, 1536
# Rows, inputs and outputs of the layers that are measured for each size class.
SAMPLES = {
    "narrow": [(520, 192, 768), (520, 768, 192)],
    "wide": [(197, 768, 2304)],
    "deep": [(197, 2304, 768)],
}
MODES = ("training", "inference", "packed")
GELUS: tuple[Gelu, ...] = ("gelu", "gelu_tanh")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def dense(layer: nn.Module, x: Tensor, activation: Gelu | None = None) -> Tensor:
    """`layer(x)`, `* d` to `* k`, followed by the activation, by the route of this machine."""
    if not (type(layer) in (nn.Linear, KeylessBias) and is_plain(x) and _is_unobserved(layer)):
        return gelu(layer(x), activation)
    assert isinstance(layer, nn.Linear)
    weight, bias = layer.weight, layer.bias
    if isinstance(layer, KeylessBias):
        bias = layer.used_bias()
    if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    training = torch.is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or bias.requires_grad
    )
    mode = "training" if training else "inference"
    if not training and weight is layer.weight and packing.is_packed(layer):
        mode = "packed"
    fused = activation is not None and not training
    if fused and _route(x, weight, bias, mode, activation) == PLAIN:
        fused = False
    if not fused and _route(x, weight, bias, mode) == PLAIN:
        return gelu(F.linear(x, weight, bias), activation)
    if training:
        packing.forget(layer)
        return gelu(_Linear.apply(x, weight, bias), activation)
    if mode == "packed":
        weight = packing.packed(layer, weight)
    if fused:
        return _linear(x, weight, bias, activation)
    return gelu(_linear(x, weight, bias, None), activation)


def gelu(x: Tensor, form: Gelu | None) -> Tensor:
    """GELU in exact form or tanh approximation (arXiv:1606.08415, section 2); None is identity."""
    if form is None:
        return x
    if form == "gelu_tanh" and is_plain(x) and x.dim() > 1 and x.numel() >= SMALL_GELU:
        name = DTYPES.get(x.dtype)
        if name is not None and route_of(f"tanh_gelu.{name}", measure) != PLAIN:
            return _TanhGelu.apply(x)
    return activate(x, form)


def key_of(dtype: torch.dtype, mode: str, size: str, activation: Gelu | None = None) -> str:
    """The key of a layer, or of a layer with the GELU behind it."""
    if activation is None:
        return f"dense.{DTYPES[dtype]}.{mode}.{size}"
    return f"dense_gelu.{DTYPES[dtype]}.{mode}.{size}.{activation}"


def keys(
    width: int, mlp_dim: int, dtype: torch.dtype, mode: str, activation: Activation
) -> set[str]:
    """Keys of the layers of an encoder of these sizes."""
    shapes = [(width, width), (width, 3 * width), (width, mlp_dim), (mlp_dim, width)]
    layers = {key_of(dtype, mode, _size(*shape)) for shape in shapes}
    if mode != "training" and activation != "swiglu":
        layers.add(key_of(dtype, mode, _size(width, mlp_dim), activation))
    return layers


def is_plain(x: Tensor) -> bool:
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


def _size(inputs: int, outputs: int) -> str:
    if min(inputs, outputs) < WIDE:
        return "narrow"
    return "wide" if inputs < DEEP else "deep"


def _route(
    x: Tensor, weight: Tensor, bias: Tensor, mode: str, activation: Gelu | None = None
) -> str:
    if not x.dtype == weight.dtype == bias.dtype or 2 * x.numel() * len(weight) < SMALL_PRODUCT:
        return PLAIN
    return route_of_layer(x.shape[-1], len(weight), x.dtype, mode, activation)


def route_of_layer(
    inputs: int, outputs: int, dtype: torch.dtype, mode: str, activation: Gelu | None = None
) -> str:
    """The route of a layer, with `activation` of both as one operation.

    `mode`: training, inference, or packed for inference after `pack`.
    """
    if dtype not in DTYPES:
        return PLAIN
    return route_of(key_of(dtype, mode, _size(inputs, outputs), activation), measure)


def _linear(x: Tensor, weight: Tensor, bias: Tensor, activation: Gelu | None = None) -> Tensor:
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
        grad_bias = _column_sums(grad) if needed[2] else None
        return grad_x, grad_weight, grad_bias


def _column_sums(grad: Tensor) -> Tensor:
    """Sums `k` over the rows of `m k`."""
    if grad.dtype == torch.float32:
        return grad.sum(0)
    # A product with ones accumulates in float32, like sum, in half the time.
    return torch.mm(grad.new_ones(1, len(grad)), grad)[0]


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


def measure(key: str, only: str | None = None) -> Choice:
    """The best route of a key of this module on this machine: "dense.DTYPE.MODE.SIZE",
    "dense_gelu.DTYPE.MODE.SIZE.FORM" or "tanh_gelu.DTYPE".

    `only`: see `trials.best`.
    """
    operation, dtype_name, *rest = key.split(".")
    dtype = {name: dtype for dtype, name in DTYPES.items()}[dtype_name]
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        if operation == "tanh_gelu":
            return _best_gelu(dtype, only)
        mode, size, *forms = rest
        layers = [_sample(*shape, dtype) for shape in SAMPLES[size]]
        if forms:
            form: Gelu = "gelu" if forms == ["gelu"] else "gelu_tanh"
            return _best_dense_gelu(*layers[0], mode, form, only)
        return _best_dense(layers, mode, only)


def _best_gelu(dtype: torch.dtype, only: str | None) -> Choice:
    m, _, k = SAMPLES["narrow"][0]
    x = 3 * _random(m, k, dtype)
    with torch.no_grad():
        return trials.best(
            {PLAIN: lambda: [activate(x, "gelu_tanh")], "onednn": lambda: [_tanh_gelu(x)]},
            [activate(x.double(), "gelu_tanh")],
            only,
        )


def _best_dense_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, mode: str, form: Gelu, only: str | None
) -> Choice:
    copy = packing.packed_copy(weight) if mode == "packed" else weight
    with torch.no_grad():
        return trials.best(
            {
                PLAIN: lambda: [activate(F.linear(x, weight, bias), form)],
                "onednn": lambda: [_linear(x, copy, bias, form)],
            },
            [activate(F.linear(x.double(), weight.double(), bias.double()), form)],
            only,
        )


def _best_dense(layers: list[tuple[Tensor, Tensor, Tensor]], mode: str, only: str | None) -> Choice:
    if mode == "training":

        def results(product: Any, inputs: list[tuple[Tensor, ...]]) -> list[Tensor]:
            outputs = []
            for tensors in inputs:
                leaves = [tensor.detach().requires_grad_() for tensor in tensors]
                with torch.enable_grad():
                    out = product(*leaves)
                grad = _random(len(out), out.shape[1], out.dtype)
                outputs += [out.detach(), *torch.autograd.grad(out, leaves, grad)]
            return outputs

        onednn, inputs = _Linear.apply, layers
    else:

        def results(product: Any, inputs: list[tuple[Tensor, ...]]) -> list[Tensor]:
            with torch.no_grad():
                return [product(*tensors) for tensors in inputs]

        onednn, inputs = _linear, layers
        if mode == "packed":
            inputs = [(x, packing.packed_copy(weight), bias) for x, weight, bias in layers]
    return trials.best(
        {PLAIN: lambda: results(F.linear, layers), "onednn": lambda: results(onednn, inputs)},
        results(F.linear, [tuple(tensor.double() for tensor in layer) for layer in layers]),
        only,
    )


def _sample(m: int, d: int, k: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias of a layer with these rows, inputs and outputs."""
    weight = _random(k, d, torch.float32) * d**-0.5
    return _random(m, d, dtype), weight.to(dtype), _random(1, k, dtype)[0]


def _random(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Normal values; leaves the global random state alone."""
    generator = torch.Generator().manual_seed(rows * columns)
    return torch.randn(rows, columns, generator=generator, device="cpu").to(dtype)
