"""Logistic regression by L-BFGS, with any regularisation strength and starting point.

Shapes: n images, d features, k classes.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 65_536
"""Images per chunk of the loss, to bound its memory."""


@dataclass(frozen=True)
class Minimum:
    """Result of the minimisation."""

    weight: Tensor
    """`k d`, or `1 d`, as the initial weight."""
    bias: Tensor
    """`k`, or `1`."""
    iterations: int
    steepest: float
    """Largest entry of the gradient."""


def minimise(
    features: Tensor,
    labels: Tensor,
    weight: Tensor,
    bias: Tensor,
    strength: float,
    *,
    scale: Tensor | float = 1.0,
    **stopping: Any,
) -> Minimum:
    """Minimises mean loss + strength * |scale * weight|^2, starting from `weight` and `bias`.

    The scores are features @ (scale * weight).T + bias. `scale` changes the coordinates of L-BFGS,
    not the minimum. The bias is not regularised.

    Args:
        features: float64 `n d`.
        labels: Classes `n`, or multi-hot `n k`; see `total_loss`.
        weight: `k d`; `1 d` for the score of the second of two classes.
        bias: `k` or `1`.
        strength: Weight of the squared norm.
        scale: `d`, or one number.
        stopping: Options of torch.optim.LBFGS: max_iter, tolerance_grad, ...
    """
    with torch.inference_mode(False), torch.enable_grad():
        weight, bias = (start.detach().clone().requires_grad_() for start in (weight, bias))
        optimizer = torch.optim.LBFGS([weight, bias], line_search_fn="strong_wolfe", **stopping)

        def objective() -> Tensor:
            optimizer.zero_grad()
            total = (weight * scale).square().sum() * strength
            total.backward()
            for x, y in zip(features.split(_ROWS), labels.split(_ROWS), strict=True):
                scores = F.linear(x, weight * scale, bias)
                loss = total_loss(scores, y) / len(features)
                loss.backward()
                total = total + loss
            return total.detach()

        optimizer.step(objective)  # pyright: ignore[reportArgumentType]
        objective()
    steepest = max(float(p.grad.abs().max()) for p in (weight, bias) if p.grad is not None)
    return Minimum(weight.detach(), bias.detach(), optimizer.state[weight]["n_iter"], steepest)


def total_loss(scores: Tensor, labels: Tensor) -> Tensor:
    """Sum over images of the cross-entropy of `scores` (n, k) with classes (n,).

    With multi-hot labels (n, k): binary cross-entropy, also summed over classes.
    """
    if labels.dim() == 1:
        return F.cross_entropy(two_columns(scores), labels, reduction="sum")
    losses = F.binary_cross_entropy_with_logits(scores, labels.to(scores), reduction="none")
    return losses.sum(1).sum()


def two_columns(scores: Tensor) -> Tensor:
    """Scores (n, k); for two classes with one score (n, 1), the first class has score 0."""
    return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores
