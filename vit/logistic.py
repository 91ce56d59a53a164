"""Logistic regression by L-BFGS, and a classification head that it fits with cross-validation.

Shapes: n images, d features, k classes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.hardware import is_small_step

STRENGTHS = (0.003, 0.01, 0.03, 0.1)
"""Weights of the squared norm that are tried for a head; the best one lies in this range for twenty
to a hundred images per class (benchmarks/LOG.md)."""
FOLDS = 3
"""Parts of the cross-validation."""
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
    class_weights: Tensor | None = None,
    fixed: Tensor | None = None,
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
        class_weights: `k`, factors of the losses of the classes.
        fixed: Scores `n k` that stay as they are; NaN for the classes that are fitted.
        stopping: Options of torch.optim.LBFGS: max_iter, tolerance_grad, ...
    """
    with ExitStack() as after, torch.inference_mode(False), torch.enable_grad():
        after.callback(torch.set_num_threads, torch.get_num_threads())
        if is_small_step(400 * features.numel() * len(bias)):  # a hundredth of a network's products
            torch.set_num_threads(1)
        weight, bias = (start.detach().clone().requires_grad_() for start in (weight, bias))
        optimizer = torch.optim.LBFGS([weight, bias], line_search_fn="strong_wolfe", **stopping)

        def objective() -> Tensor:
            optimizer.zero_grad()
            total = (weight * scale).square().sum() * strength
            total.backward()
            for start in range(0, len(features), _ROWS):
                part = slice(start, start + _ROWS)
                scores = F.linear(features[part], weight * scale, bias)
                scores = scores if fixed is None else filled(fixed[part], scores)
                loss = total_loss(scores, labels[part], class_weights) / len(features)
                loss.backward()
                total = total + loss
            return total.detach()

        optimizer.step(objective)  # pyright: ignore[reportArgumentType]
        objective()
    steepest = max(float(p.grad.abs().max()) for p in (weight, bias) if p.grad is not None)
    return Minimum(weight.detach(), bias.detach(), optimizer.state[weight]["n_iter"], steepest)


def total_loss(scores: Tensor, labels: Tensor, class_weights: Tensor | None = None) -> Tensor:
    """Sum over images of the cross-entropy of `scores` (n, k) with classes (n,).

    With multi-hot labels (n, k): binary cross-entropy, also summed over classes. `class_weights`
    (k,) are factors of the losses of the classes.
    """
    if labels.dim() == 1:
        return F.cross_entropy(two_columns(scores), labels, class_weights, reduction="sum")
    targets = labels.to(scores)
    return F.binary_cross_entropy_with_logits(scores, targets, class_weights, reduction="sum")


def two_columns(scores: Tensor) -> Tensor:
    """Scores (n, k); for two classes with one score (n, 1), the first class has score 0."""
    return torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores


def filled(fixed: Tensor, scores: Tensor) -> Tensor:
    """The fixed scores `n k`, with `scores` in place of NaN."""
    return torch.where(fixed.isnan(), scores, fixed)


@torch.no_grad()
def set_head(layer: nn.Module, weight: Tensor, bias: Tensor) -> None:
    """Copies weight `k d` and bias `k` into a linear layer, or into a convolution of one pixel."""
    layer.get_parameter("weight").copy_(weight.view_as(layer.get_parameter("weight")))
    layer.get_parameter("bias").copy_(bias)


@dataclass(frozen=True)
class FittedHead:
    """The result of `fit_head`."""

    weight: Tensor
    """`k d`."""
    bias: Tensor
    """`k`."""
    held_out: Tensor | None
    """Logits `n k`, of each image by a fit without its fold; None for too few to fold."""
    loss: float
    """Sum of the losses of `held_out`; 0 if there are none."""

    def accuracy(self, labels: Tensor) -> float:
        """Share of images, or of zeros and ones `n k`, that the held-out logits get right."""
        assert self.held_out is not None
        guessed = self.held_out.argmax(1) if labels.dim() == 1 else (self.held_out > 0).to(labels)
        return float((guessed == labels).double().mean())


def fit_head(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    strengths: Sequence[float] = STRENGTHS,
    class_weights: Tensor | None = None,
    fixed: Tensor | None = None,
    groups: Tensor | None = None,
) -> FittedHead:
    """Fits a head with the strength that has the smallest loss in cross-validation.

    Args:
        features: float64 `n d`.
        labels: Classes `n`, or zeros and ones `n k`.
        num_classes: k.
        strengths: Ascending; the last one is taken for fewer than FOLDS images or groups.
        class_weights: `k`, factors of the losses of the classes.
        fixed: Logits `n k` of classes that are not fitted, whose rows are zero; NaN for the others.
        groups: int64 `n`; images of one group are in one fold.
    """
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
    z, weights = (features - mean) / std, None if class_weights is None else class_weights.to(mean)
    strength, held_out, least = strengths[-1], None, 0.0
    if len(labels if groups is None else groups.unique()) >= FOLDS:
        options = weights, fixed, groups
        tried = [held_out_logits(z, labels, num_classes, s, *options) for s in strengths]
        losses = [float(total_loss(logits, labels, weights)) for logits in tried]
        best = losses.index(least := min(losses))
        strength, held_out = strengths[best], tried[best]
    fit = _fitted(z, labels, num_classes, strength, weights, fixed)
    weight = fit.weight / std
    return FittedHead(weight, fit.bias - weight @ mean, held_out, least)


def held_out_logits(
    z: Tensor,
    labels: Tensor,
    num_classes: int,
    strength: float,
    class_weights: Tensor | None = None,
    fixed: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    folds: int = FOLDS,
    most: int | None = None,
) -> Tensor:
    """Logits `n k`, of each image by a fit without its fold to at most `most` images.

    `z` are standardised features `n d`; the others as for `fit_head`.
    """
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(0))
    fold_of, logits = torch.arange(len(z)) % folds, z.new_empty(len(z), num_classes)
    if groups is not None:
        from sklearn.model_selection import GroupKFold  # slow to import

        parts = GroupKFold(folds).split(z, groups=groups[order].numpy())
        for fold, (_, out) in enumerate(parts):
            fold_of[out] = fold
    for fold in range(folds):
        out, rest = order[fold_of == fold], order[fold_of != fold][:most].sort().values
        rows = None if fixed is None else fixed[rest]
        fit = _fitted(z[rest], labels[rest], num_classes, strength, class_weights, rows)
        logits[out] = z[out] @ fit.weight.T + fit.bias
    return logits if fixed is None else filled(fixed, logits)


def _fitted(
    z: Tensor, labels: Tensor, num_classes: int, strength: float, *options: Tensor | None
) -> Minimum:
    weight, bias = z.new_zeros(num_classes, z.shape[1]), z.new_zeros(num_classes)
    stopping = {"max_iter": 300, "tolerance_grad": 1e-7, "tolerance_change": 1e-13}
    class_weights, fixed = options
    return minimise(
        z, labels, weight, bias, strength, class_weights=class_weights, fixed=fixed, **stopping
    )
