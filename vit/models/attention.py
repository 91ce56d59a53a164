"""Choice of the attention kernel for softmax(q k^T / sqrt(e)) v, based on measurements.

`F.scaled_dot_product_attention` (SDPA) works everywhere and is fastest on GPUs. Its CPU kernel does
not use the bfloat16 units. Plain matrix products do: at 17 to 1025 tokens they are 1.0-1.3 times
as fast forward and 1.5-4 times forward and backward (one Zen 5 core).
Shapes: b batch, heads, n queries, m keys, e channels per head; p = b heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vit.models.matmul import HAS_BFLOAT16
from vit.shapes import Float

# SDPA's blocked kernel is faster above 1025 tokens (512 pixels, patch 16, class token).
MAX_TOKENS = 1025
# Scores computed at a time: 1 MB in float32, which fits a core's cache.
SCORES_AT_ONCE = 2**18


def attend(
    q: Float[Tensor, "b heads n e"],
    k: Float[Tensor, "b heads m e"],
    v: Float[Tensor, "b heads m e"],
) -> Float[Tensor, "b heads n e"]:
    """Scaled dot-product attention (ViT, arXiv:2010.11929, eqs. 6-7) with the fastest kernel."""
    if not _use_products(k):
        return F.scaled_dot_product_attention(q, k, v)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        out = _Products.apply(*flat)
    else:
        out = _products(*flat, weights=None)
    return out.view_as(q)


def _use_products(k: Tensor) -> bool:
    """Whether `k` (b heads m e) is bfloat16 on a capable CPU; otherwise SDPA is faster."""
    on_cpu = HAS_BFLOAT16 and k.device.type == "cpu"
    return on_cpu and k.dtype == torch.bfloat16 and k.shape[-2] <= MAX_TOKENS


def _products(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None) -> Tensor:
    """Output `p n e`. The attention weights `p n m` are written to `weights`, if not None.

    Scores are float32, as in SDPA. In bfloat16 their error would be up to |score| / 512, and the
    output error 2, 6 or 30 times larger for scores with standard deviation 1, 9 or 64.
    """
    (p, n, e), m = q.shape, k.shape[1]
    plain = not torch.compiler.is_compiling()  # compiling would unroll the loop and guard on sizes
    if plain and p > 1 and p * n * m > SCORES_AT_ONCE:
        step = max(1, SCORES_AT_ONCE // (n * m))
        parts = [slice(start, start + step) for start in range(0, p, step)]
        kept = [None if weights is None else weights[part] for part in parts]
        return torch.cat([_products(q[i], k[i], v[i], w) for i, w in zip(parts, kept, strict=True)])
    ignored = q.new_empty(1, 1, 1, dtype=torch.float32)  # not read, because beta=0
    keys = k.float().transpose(1, 2)
    attention = torch.baddbmm(ignored, q.float(), keys, beta=0, alpha=e**-0.5).softmax(-1)
    rounded = attention.to(v.dtype) if weights is None else weights.copy_(attention)
    return torch.bmm(rounded, v)


class _Products(torch.autograd.Function):
    """Saves the weights in bfloat16 for the backward pass, which computes in bfloat16."""

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
        grad = grads[0].contiguous()
        grad_v = torch.bmm(weights.transpose(1, 2), grad)
        grad_weights = torch.bmm(grad, v.transpose(1, 2))
        grad_scores = torch.ops.aten._softmax_backward_data(grad_weights, weights, -1, grad.dtype)
        ignored, scale = q.new_empty(1, 1, 1), q.shape[-1] ** -0.5
        grad_q = torch.baddbmm(ignored, grad_scores, k, beta=0, alpha=scale)
        grad_k = torch.baddbmm(ignored, grad_scores.transpose(1, 2), q, beta=0, alpha=scale)
        return grad_q, grad_k, grad_v
