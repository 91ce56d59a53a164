"""Which kernel computes softmax(q k^T / sqrt(e)) v: one rule, measured, in one place.

`F.scaled_dot_product_attention` (SDPA) is right everywhere and fastest on GPUs. Its CPU kernel does
not use the bfloat16 units, though; plain matrix products do, and at 17 to 1025 tokens they take
1.0-1.3 times less CPU time forward, 1.5-4 times less forward and backward (one Zen 5 core).
Shapes: b batch, heads, n queries, m keys, e channels of a head; p = b heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vit.models.matmul import HAS_BFLOAT16
from vit.shapes import Float

# SDPA's blocks win beyond 1025 tokens (512 pixels in patches of 16, and the class token).
MAX_TOKENS = 1025
# Scores computed at a time: 1 MB in float32, which stays in a core's cache.
SCORES_AT_ONCE = 2**18


def attend(
    q: Float[Tensor, "b heads n e"],
    k: Float[Tensor, "b heads m e"],
    v: Float[Tensor, "b heads m e"],
) -> Float[Tensor, "b heads n e"]:
    """Scaled dot-product attention (ViT, arXiv:2010.11929, eqs. 6-7) by the fastest route."""
    if not _use_products(k):
        return F.scaled_dot_product_attention(q, k, v)
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in flat):
        out = _Products.apply(*flat)
    else:
        out = _products(*flat, weights=None)
    return out.view_as(q)


def _use_products(k: Tensor) -> bool:
    """Whether keys `b heads m e` are bfloat16 on such a CPU; in float16 SDPA is the faster one."""
    on_cpu = HAS_BFLOAT16 and k.device.type == "cpu"
    return on_cpu and k.dtype == torch.bfloat16 and k.shape[-2] <= MAX_TOKENS


def _products(q: Tensor, k: Tensor, v: Tensor, weights: Tensor | None) -> Tensor:
    """The output `p n e`; the attention weights `p n m` go to `weights` where it is given.

    Scores are float32, as in SDPA: rounded to bfloat16 they would be wrong by up to |score| / 512,
    and the output 2, 6 or 30 times less accurate at scores of deviation 1, 9 or 64.
    """
    (p, n, e), m = q.shape, k.shape[1]
    plain = not torch.compiler.is_compiling()  # which would unroll the loop, and ask for sizes
    if plain and p > 1 and p * n * m > SCORES_AT_ONCE:
        step = max(1, SCORES_AT_ONCE // (n * m))
        parts = [slice(start, start + step) for start in range(0, p, step)]
        kept = [None if weights is None else weights[part] for part in parts]
        return torch.cat([_products(q[i], k[i], v[i], w) for i, w in zip(parts, kept, strict=True)])
    ignored = q.new_empty(1, 1, 1, dtype=torch.float32)  # beta=0 leaves it unread
    keys = k.float().transpose(1, 2)
    attention = torch.baddbmm(ignored, q.float(), keys, beta=0, alpha=e**-0.5).softmax(-1)
    rounded = attention.to(v.dtype) if weights is None else weights.copy_(attention)
    return torch.bmm(rounded, v)


class _Products(torch.autograd.Function):
    """Keeps the weights in bfloat16 for the backward pass, whose products are all bfloat16."""

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
