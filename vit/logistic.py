"""Logistic regression by L-BFGS, and a classification head fitted by it with cross-validation.

Shapes: n images, d features, k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRENGTHS = (0.003, 0.01, 0.03, 0.1)
"""Weights of the squared norm that are tried for a head; the best one lies in this range for twenty
to a hundred images per class (benchmarks/LOG.md)."""

FOLDS = 3

_ROWS = 65_536
"""Images per chunk of the loss, to bound its memory."""


@dataclass(frozen=True)
class Minimum:
    """The result of `minimise`."""

    weight: Tensor
    bias: Tensor
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
    """Minimises mean loss + strength * |scale * weight|^2 from `weight` and `bias`.

    Args:
        features: float64 `n d`; the scores are features @ (scale * weight).T + bias.
        labels: Classes `n`, or multi-hot `n k`; see `total_loss`.
        weight: `k d`; `1 d` for the score of the second of two classes.
        bias: `k` or `1`, not regularised.
        strength: Weight of the squared norm.
        scale: `d` or one number: changes the coordinates of L-BFGS, not the minimum.
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


@torch.no_grad()
def set_head(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Puts weight `k d` and bias `k` into a linear layer, or into a convolution of one pixel."""
    layer.get_parameter("weight").copy_(weight.view_as(layer.get_parameter("weight")))
    layer.get_parameter("bias").copy_(bias)


def fit_head(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    strengths: Sequence[float] = STRENGTHS,
) -> tuple[Tensor, Tensor, float]:
    """Weight `k d`, bias `k`, and accuracy by cross-validation, which chooses the strength.

    `features` are float64 `n d`, `labels` classes `n` or zeros and ones `n k`, whose accuracy is
    the share of correct labels. Fewer than FOLDS images take the largest of the ascending
    `strengths`; the accuracy is then NaN.
    """
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
    z = (features - mean) / std
    strength, accuracy = strengths[-1], float("nan")
    if len(z) >= FOLDS:
        scores = [_cross_validate(z, labels, num_classes, strength) for strength in strengths]
        best = min(range(len(scores)), key=lambda i: scores[i][0])
        strength, accuracy = strengths[best], scores[best][1]
    weight, bias = logistic_regression(z, labels, num_classes, strength)
    weight = weight / std
    return weight, bias - weight @ mean, accuracy


def _cross_validate(
    z: Tensor, labels: Tensor, num_classes: int, strength: float
) -> tuple[float, float]:
    """Mean loss and accuracy over the images, each scored by a fit without its fold."""
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    loss, right = 0.0, 0.0
    for fold in range(FOLDS):
        out = torch.zeros(len(z), dtype=torch.bool)
        out[order[fold::FOLDS]] = True
        weight, bias = logistic_regression(z[~out], labels[~out], num_classes, strength)
        logits = z[out] @ weight.T + bias
        loss += float(total_loss(logits, labels[out]))
        if labels.dim() == 1:
            right += float((logits.argmax(1) == labels[out]).sum())
        else:
            right += float(((logits > 0) == (labels[out] > 0.5)).double().mean(1).sum())
    return loss / len(z), right / len(z)


def logistic_regression(
    features: Tensor, labels: Tensor, num_classes: int, strength: float
) -> tuple[Tensor, Tensor]:
    """Weight `k d` and bias `k` of `minimise`, from zero."""
    weight = features.new_zeros(num_classes, features.shape[1])
    bias = features.new_zeros(num_classes)
    stopping = {"max_iter": 300, "tolerance_grad": 1e-7, "tolerance_change": 1e-13}
    fit = minimise(features, labels, weight, bias, strength, **stopping)
    return fit.weight, fit.bias
