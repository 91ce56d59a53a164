"""softmax(q k^T / sqrt(e)) v by PyTorch's fused kernel, by matrix products, or by both.

`F.scaled_dot_product_attention` (SDPA) works everywhere and is fastest on GPUs. On CPUs it is one
pass over blocks of keys; plain products can be faster where the units for matrices are fast, and
its backward pass is slow on several. Routes, of which the machine's measurement chooses:
- plain: SDPA;
- products: explicit products with float32 scores; the weights are kept for the backward pass;
- mixed, in training: SDPA's forward pass, and products in the backward pass, which computes the
  weights again.
Shapes: b batch, heads, n queries, m keys, e channels per head; p = b heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vit.kernels import trials
from vit.kernels.dense import DTYPES, is_plain
from vit.kernels.routes import PLAIN, Choice, route_of
from vit.shapes import Float

# Size class -> (most keys, images and tokens of the sample). Above all of them SDPA alone is used:
# the weights that the other routes keep grow with the square.
SIZES = {"short": (128, 12, 65), "middle": (400, 4, 197), "long": (1025, 1, 577)}
HEADS, HEAD, SHARPNESS = 3, 64, 3.0
"""Heads of the sample, channels per head, as in all published models but the largest, and standard
deviation of its scores. Sharper attention shows errors of the scores."""
# Scores computed at a time: 1 MB in float32, which fits a core's cache.
SCORES_AT_ONCE = 2**18


def attend(
    q: Float[Tensor, "b heads n e"],
    k: Float[Tensor, "b heads m e"],
    v: Float[Tensor, "b heads m e"],
) -> Float[Tensor, "b heads n e"]:
    """Scaled dot-product attention (ViT, arXiv:2010.11929, eqs. 6-7) by the machine's route."""
    size = size_class(k.shape[-2])
    # A single query, as of attention pooling, is as fast by any route.
    if size is None or q.shape[-2] == 1 or k.dtype not in DTYPES or not is_plain(k):
        return F.scaled_dot_product_attention(q, k, v)
    training = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    mode = "training" if training else "inference"
    route = route_of(f"attention.{DTYPES[k.dtype]}.{mode}.{size}", measure)
    return _by(route, q, k, v, training)


def size_class(tokens: int) -> str | None:
    """The size class of a number of keys; None above all of them."""
    return next((name for name, (most, _, _) in SIZES.items() if tokens <= most), None)


def _by(route: str, q: Tensor, k: Tensor, v: Tensor, training: bool) -> Tensor:
    if route == "mixed" and training:
        return _Mixed.apply(q, k, v)
    if route != "products":
        return F.scaled_dot_product_attention(q, k, v)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    out = _Products.apply(*flat) if training else _products(*flat, weights=None)
    return out.view_as(q)


def _products(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None) -> Tensor:
    """Output `p n e`. The attention weights `p n m` are written to `weights`, if not None.

    Scores are float32, as in SDPA. In bfloat16 their error would be up to |score| / 512, and the
    output error 2, 6 or 30 times larger for scores with standard deviation 1, 9 or 64.
    """
    parts = _parts(len(q), q.shape[1] * k.shape[1])
    if len(parts) > 1:
        kept = [None if weights is None else weights[part] for part in parts]
        return torch.cat([_products(q[i], k[i], v[i], w) for i, w in zip(parts, kept, strict=True)])
    attention = _weights(q, k)
    rounded = attention.to(v.dtype) if weights is None else weights.copy_(attention)
    return torch.bmm(rounded, v)


def _parts(heads: int, scores: int) -> list[slice]:
    """Ranges of heads, each with SCORES_AT_ONCE scores or one head."""
    step = max(1, SCORES_AT_ONCE // scores)
    return [slice(start, start + step) for start in range(0, heads, step)]


def _weights(q: Tensor, k: Tensor) -> Tensor:
    """Attention weights `p n m` in float32."""
    ignored = q.new_empty(1, 1, 1, dtype=torch.float32)  # not read, because beta=0
    keys, scale = k.float().transpose(1, 2), q.shape[-1] ** -0.5
    return torch.baddbmm(ignored, q.float(), keys, beta=0, alpha=scale).softmax(-1)


class _Products(torch.autograd.Function):
    """Saves the weights in the dtype of the values for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = q.new_empty(*q.shape[:2], k.shape[1])
        out = _products(q, k, v, weights)
        ctx.save_for_backward(q, k, v, weights)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        q, k, v, weights = ctx.saved_tensors
        return _gradients(q, k, v, weights, grads[0].contiguous())


class _Mixed(torch.autograd.Function):
    """SDPA's forward pass; products in the backward pass, with the weights computed again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return F.scaled_dot_product_attention(q, k, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        shapes = [x.shape for x in ctx.saved_tensors]
        q, k, v, grad = (x.flatten(0, 1) for x in (*ctx.saved_tensors, grads[0]))
        parts = [
            _gradients(q[i], k[i], v[i], _weights(q[i], k[i]).to(v.dtype), grad[i])
            for i in _parts(len(q), q.shape[1] * k.shape[1])
        ]
        whole = (torch.cat(part) for part in zip(*parts, strict=True))
        return tuple(x.view(shape) for x, shape in zip(whole, shapes, strict=True))


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values, from the attention weights `p n m`."""
    grad_v = torch.bmm(weights.transpose(1, 2), grad)
    grad_weights = torch.bmm(grad, v.transpose(1, 2))
    grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, grad.dtype)
    ignored, scale = q.new_empty(1, 1, 1), q.shape[-1] ** -0.5
    grad_q = torch.baddbmm(ignored, grad_scores, k, beta=0, alpha=scale)
    grad_k = torch.baddbmm(ignored, grad_scores.transpose(1, 2), q, beta=0, alpha=scale)
    return grad_q, grad_k, grad_v


def measure(key: str, only: str | None = None) -> Choice:
    """The best route of a key "attention.DTYPE.MODE.SIZE" on this machine.

    `only`: see `trials.best`.
    """
    _, dtype_name, mode, size = key.split(".")
    dtype = {name: dtype for dtype, name in DTYPES.items()}[dtype_name]
    _, batch, tokens = SIZES[size]
    training = mode == "training"
    # As in a model, queries, keys and values are views of one tensor, which some routes copy.
    qkv = _random(batch, tokens, 3, HEADS, HEAD)
    qkv[:, :, 0] *= SHARPNESS
    grad = _random(batch, tokens, HEADS * HEAD)

    def results(route: str, exact: bool = False) -> list[Tensor]:
        used = torch.float64 if exact else dtype
        leaf = qkv.to(used).requires_grad_(training)
        with torch.set_grad_enabled(training):
            q, k, v = leaf.permute(2, 0, 3, 1, 4).unbind(0)
            out = _by(route, q, k, v, training).transpose(1, 2).flatten(2)
        if not training:
            return [out]
        grads = torch.autograd.grad(out, leaf, grad.to(used))[0]
        return [out.detach(), *grads.unbind(2)]

    candidates = [PLAIN, "products", "mixed"] if training else [PLAIN, "products"]
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False):
        return trials.best(
            {route: lambda route=route: results(route) for route in candidates},
            results(PLAIN, exact=True),
            only,
        )


def _random(*shape: int) -> Tensor:
    """Normal values; leaves the global random state alone."""
    generator = torch.Generator().manual_seed(shape[1])
    return torch.randn(shape, generator=generator, device="cpu")
