"""softmax(q k^T / sqrt(e)) v, and the rule by which CPUs compute it when they train in bfloat16.

PyTorch's fused kernel, `F.scaled_dot_product_attention` (SDPA), is used in all other cases. Its
backward pass in bfloat16 is slow on CPUs: matrix products with saved weights take 0.2 to 0.7 of the
time of both passes for 17 to 1025 tokens (AMD Zen 4, and with bfloat16 emulated on Intel; figures
in benchmarks/LOG.md). Nothing is measured at run time, so that a resumed run computes as before.
Shapes: b batch, heads, n tokens, e channels per head; p = b heads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vit.models.config import PRODUCT_TOKENS
from vit.shapes import Float


def attend(
    q: Float[Tensor, "b heads n e"],
    k: Float[Tensor, "b heads n e"],
    v: Float[Tensor, "b heads n e"],
    bias: Float[Tensor, "b_or_1 heads_or_1 n n"] | None = None,
) -> Float[Tensor, "b heads n e"]:
    """Scaled dot-product attention (ViT, arXiv:2010.11929, eqs. 6-7).

    `bias` is added to the scores, rounded to the dtype of the queries. Without one, by matrix
    products if gradients are required, in bfloat16 on a CPU, of at most PRODUCT_TOKENS tokens;
    these gradients cannot be differentiated again (RuntimeError). By SDPA otherwise.
    """
    if bias is not None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
    if (
        k.dtype == torch.bfloat16
        and torch.is_grad_enabled()
        and (q.requires_grad or k.requires_grad or v.requires_grad)
        and is_plain(k)
        and k.shape[-2] <= PRODUCT_TOKENS
    ):
        # Stacking copies the three into the layout of the products, once for both passes.
        return _Products.apply(torch.stack([q, k, v]).flatten(1, 2)).view(q.shape)
    return F.scaled_dot_product_attention(q, k, v)


def is_plain(x: Tensor) -> bool:
    """True on the CPU if no mode is active, such as a counter, that needs to see PyTorch's own
    operators."""
    return (  # pyright: ignore[reportUnknownVariableType]
        type(x) is Tensor
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        and not torch._C._len_torch_dispatch_stack()  # pyright: ignore[reportPrivateUsage]
        and not torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
        and torch.autograd.forward_ad._current_level < 0  # pyright: ignore
    )


class _Products(torch.autograd.Function):
    """Attention `p n e` of `3 p n e`; saves the weights `p n n` in bfloat16."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor) -> Tensor:
        q, k, v = qkv.unbind(0)
        # Float32 scores, as in SDPA. Rounded to bfloat16, as autocast would, they make the error
        # of the output 2 times larger for scores with standard deviation 1, and 7 times for 8.
        with torch.autocast("cpu", enabled=False):
            scores = torch.bmm(q.float() * q.shape[-1] ** -0.5, k.float().mT)
            weights = scores.softmax(-1).to(v.dtype)
        ctx.save_for_backward(qkv, weights)
        return torch.bmm(weights, v)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # pyright: ignore
        (grad,), (qkv, weights) = grads, ctx.saved_tensors
        q, k, v = qkv.unbind(0)
        # Of softmax, as autograd computes it from the weights; no public operator does.
        grad_scores = torch.ops.aten._softmax_backward_data(
            torch.bmm(grad, v.mT), weights, -1, weights.dtype
        )
        result = torch.empty_like(qkv)
        torch.bmm(grad_scores, k, out=result[0])
        torch.bmm(grad_scores.mT, q, out=result[1])
        torch.bmm(weights.mT, grad, out=result[2])
        result[:2] *= q.shape[-1] ** -0.5
        return result
