"""Temperature scaling (Guo et al., arXiv:1706.04599, section 4.2), and adaptive prediction sets
(RAPS, Angelopoulos et al., arXiv:2009.14193, section 2).

Shapes: n b images, k classes.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError

TRUST = "trust.safetensors"
"""A file beside weights: what held-out images say about their answers."""
LIMIT = math.log(20.0)
"""Of |log T|; a minimum further out is that of images that are all named rightly, or wrongly."""
LATE, PENALTY = 5, 0.01
"""RAPS' k_reg and lambda: what the score of a class grows by for every rank after the fifth."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T that minimises the cross-entropy of softmax(logits / T), `n k`, with classes `n`; with
    labels `n k` of 0 and 1 the binary cross-entropy of sigmoid(logits / T).

    1 where there is no minimum, as where every image is named rightly: any smaller T were better.
    """
    from scipy.optimize import brentq  # slow to import; comes with scikit-learn

    scores = logits.double()
    if labels.dim() == 1:
        scores = scores - scores.gather(1, labels[:, None])

    def slope(log_t: float) -> float:
        """Of the loss by log T; the loss is convex in 1 / T."""
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
    places = torch.tensor(thresholds, dtype=torch.float64).logit()
    return (places / temperature).sigmoid().tolist()


def energy(logits: Tensor, *, multilabel: bool = False) -> Tensor:
    """(n,) of logits (n, k): -log sum exp (arXiv:2010.03759, eq. 4, T = 1).

    With several labels per image: - the sum of softplus over the classes (arXiv:2109.00030, eq. 6).
    """
    logits = logits.float()
    return -(F.softplus(logits).sum(1) if multilabel else logits.logsumexp(1))


def set_scores(probabilities: Tensor) -> Tensor:
    """Scores `b k` of the classes from their probabilities `b k`; those up to `cut` are in the set.

    E of the paper's equation 4 with u = 0: the mass of the more probable classes, and PENALTY for
    every rank after LATE. Without a random u the answer to a picture is always the same and holds
    at least its most probable class; the true class is in the set at least as often as asked, more
    often only where the most probable class alone is right that often.
    """
    values, order = probabilities.double().sort(dim=1, descending=True, stable=True)
    more_probable = values.cumsum(1) - values
    ranks = torch.arange(1, values.shape[1] + 1, device=values.device)
    scores = more_probable.clamp(min=0) + PENALTY * (ranks - LATE).clamp(min=0)
    return torch.empty_like(scores).scatter_(1, order, scores)


def cut(scores: Tensor, coverage: float, name: str = "coverage") -> float:
    """The largest score in a set that holds the true class in a share `coverage` of images.

    `scores`: of the true classes of held-out images, ascending `n`. The ceil((n + 1) coverage)-th
    of them (theorem 1). UserError where that is beyond the last.
    """
    place = math.ceil((len(scores) + 1) * coverage - 1e-9)
    if place > len(scores):
        needed = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise UserError(
            f"{name}={coverage:g} needs at least {needed:,} held-out images, and the model was "
            f"measured on {len(scores):,}; ask for less, or train with a larger val"
        )
    return float(scores[place - 1])
