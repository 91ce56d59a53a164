"""Rows of a head near those that it has, by least squares with a closed form.

Shapes: n images, d features, k classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-6, 7))
"""Weights of the squared distance from the rows that are tried, 0.001 to 1,000."""
TEMPERATURES = tuple(2.0**exponent for exponent in range(-4, 2))
"""By which scores of one-hot labels are divided for logits; the best one is taken."""


@dataclass(frozen=True)
class RidgeHead:
    """The result of `ridge_towards`."""

    weight: Tensor
    """`k d`."""
    bias: Tensor
    """`k`."""
    held_out: Tensor
    """Logits `n k`, of each image by a fit without it."""
    strength: float
    loss: float
    """Mean cross-entropy of `held_out`."""


def ridge_towards(
    features: Tensor, labels: Tensor, rows: Tensor, strength: float | None = None
) -> RidgeHead:
    """Least squares of one-hot labels, with rows near a multiple of `rows`.

    Minimises |Y - X (a R + D)^T - b|^2 + strength |D|^2 over D and b, with X the features `n d` in
    float64, Y the labels `n k` and R the rows `k d`. The multiple a has the smallest squared error
    of the scores by leave-one-out, and the strength, if it is not given, the smallest
    cross-entropy. Both have a closed form: a residual is divided by one minus the leverage of its
    image (Allen, 1974, doi:10.1080/00401706.1974.10489157).
    """
    targets = F.one_hot(labels, len(rows)).to(features)
    x, y, named = (each - each.mean(0) for each in (features, targets, features @ rows.T))
    values, vectors = torch.linalg.eigh(x @ x.T)
    values = values.clamp(min=0)
    best: RidgeHead | None = None
    for each in STRENGTHS if strength is None else (strength,):
        rest = (vectors * (each / (values + each))) @ vectors.T  # 1 - leverages, but for the mean
        share = (rest.diagonal() - 1 / len(x)).clamp(min=1e-9)[:, None]
        without, of_rows = rest @ y / share, rest @ named / share
        factor = max(float((without * of_rows).sum() / of_rows.square().sum()), 0.0)
        scores = targets - without + factor * of_rows
        losses = {t: float(F.cross_entropy(scores / t, labels)) for t in TEMPERATURES}
        t = min(losses, key=losses.__getitem__)
        if best is None or losses[t] < best.loss:
            weight = factor * rows + (rest @ (y - factor * named) / each).T @ x
            bias = targets.mean(0) - weight @ features.mean(0)
            best = RidgeHead(weight / t, bias / t, scores / t, each, losses[t])
    assert best is not None
    return best
