"""The most probable classes, temperature scaling (arXiv:1706.04599, section 4.2), sets (RAPS,
arXiv:2009.14193, section 2) and the energy score. Shapes: n b images, k classes."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError

TRUST = "trust.safetensors"
"""File beside weights with measurements on held-out images."""
LIMIT = math.log(20.0)
"""Bound on |log T|: beyond it the loss has no minimum (all answers are right, or all wrong)."""
LATE, PENALTY = 5, 0.01
"""RAPS' k_reg and lambda: the score of a class grows by PENALTY for every rank after LATE."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that minimises the cross-entropy of softmax(logits / T), `n k`, with classes `n`, or
    the binary cross-entropy of sigmoid(logits / T) with labels `n k` of 0 and 1.

    1 if there is no minimum, for example if every answer is right: the smaller T, the better.
    """
    from scipy.optimize import brentq  # slow to import; comes with scikit-learn

    scores = logits.double()
    if labels.dim() == 1:
        scores = scores - scores.gather(1, labels[:, None])

    def slope(log_t: float) -> float:
        """Derivative of the loss by log T; the loss is convex in 1 / T."""
        beta = math.exp(-log_t)
        if labels.dim() == 1:
            error = torch.linalg.vecdot((scores * beta).softmax(1), scores)
        else:
            error = ((scores * beta).sigmoid() - labels) * scores
        return -beta * float(error.mean())

    if not slope(-LIMIT) < 0 < slope(LIMIT):
        return 1.0
    return math.exp(brentq(slope, -LIMIT, LIMIT, xtol=1e-9))  # pyright: ignore[reportArgumentType]


def carried_over(thresholds: Sequence[float], temperature: float) -> list[float]:
    """Thresholds of sigmoid(z / temperature) that decide as `thresholds` of sigmoid(z) do."""
    if temperature == 1:
        return list(thresholds)
    logits = torch.tensor(thresholds, dtype=torch.float64).logit()
    return (logits / temperature).sigmoid().tolist()


def energy(logits: Tensor, *, multilabel: bool = False) -> Tensor:
    """Energy `n` of logits `n k`: -logsumexp (arXiv:2010.03759, eq. 4, T = 1).

    With several labels per image: minus the sum of softplus (arXiv:2109.00030, eq. 6).
    """
    logits = logits.float()
    return -(F.softplus(logits).sum(1) if multilabel else logits.logsumexp(1))


def set_scores(probabilities: Tensor) -> Tensor:
    """Scores `b k` of classes with probabilities `b k`; the set is the classes up to `cut`.

    E of RAPS' equation 4 with u = 0: the mass of the more probable classes, and PENALTY for every
    rank after LATE. Without a random u, the set of an image is always the same and holds at least
    the most probable class. The true class is in the set at least as often as requested, more
    often only if the most probable class alone is right more often.
    """
    values, order = probabilities.double().sort(dim=1, descending=True, stable=True)
    more_probable = values.cumsum(1) - values
    ranks = torch.arange(1, values.shape[1] + 1, device=values.device)
    scores = more_probable.clamp(min=0) + PENALTY * (ranks - LATE).clamp(min=0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def cut(scores: Tensor, coverage: float, name: str = "coverage") -> float:
    """The largest score in a set that holds the true class for a share `coverage` of images.

    It is the ceil((n + 1) coverage)-th of `scores`, ascending `n`, which are those of the true
    classes of held-out images (theorem 1). UserError if there are too few.
    """
    rank = max(math.ceil((len(scores) + 1) * coverage - 1e-9), 1)
    if rank > len(scores):
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise UserError(
            f"{name}={coverage:g} needs at least {needed:,} held-out images, and the model was "
            f"measured on {len(scores):,}; ask for less, or train with a larger val"
        )
    return float(scores[rank - 1])


def top_classes(scores: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` largest scores of each row `n k` and their classes, both `n t`, largest first.

    Ties, which are common in bfloat16, go to the first classes; `torch.topk` takes any.
    """
    values, classes = scores.sort(dim=-1, descending=True, stable=True)
    return values[..., :top], classes[..., :top]
