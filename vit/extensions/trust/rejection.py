"""Choice of the score that refuses images best (El-Yaniv and Wiener, 2010).

Shapes: n images, k classes, d features.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vit.confidence import energy
from vit.extensions.trust.unknown import SCORES, References
from vit.logistic import STRENGTHS, minimise

GROUPS = 10
MOST_CLASSES = 100
"""Classes that enter the choice, to bound its time."""
DEFAULT = "energy"
"""The score where no class can be left out."""
STOPPING = {"max_iter": 50, "tolerance_grad": 1e-3}
"""Of the probes: the areas change by less than 0.001 with more steps."""

Labelled = tuple[Tensor, Tensor]
"""Features (n, d) and classes (n,)."""


@dataclass(frozen=True)
class Choice:
    """The score that decides, and why."""

    score: str
    areas: dict[str, float]
    """Score -> mean area under the risk-coverage curve; empty where no class could be left out."""
    groups: int
    """How many groups of classes were left out in turn."""


def risks(scores: Tensor, wrong: Tensor) -> Tensor:
    """(n,) share of `wrong` (n,) among the 1, 2, ... n images of the lowest `scores` (n,)."""
    ordered = wrong[scores.argsort(stable=True)].double()
    return ordered.cumsum(0) / torch.arange(1, len(ordered) + 1)


def choose(train: Labelled, val: Labelled, seed: int = 0) -> Choice:
    """The score of SCORES with the lowest mean area under the risk-coverage curve of val images.

    At most ten groups of classes, drawn by `seed`, are left out of train in turn, and a probe is
    fitted to the others; wrong are images of val of which it names a wrong class or, as their class
    is left out, any. The area is the mean risk over all coverages (arXiv:1805.08206). With fewer
    than three classes none can be left out.
    """
    areas = [area for area in _areas(train, val, seed) if area]
    if not areas:
        return Choice(DEFAULT, {}, 0)
    means = {score: sum(area[score] for area in areas) / len(areas) for score in SCORES}
    return Choice(min(means, key=means.__getitem__), means, len(areas))


def _areas(train: Labelled, val: Labelled, seed: int) -> Iterator[dict[str, float]]:
    """Score -> area, for each group that is left out."""
    (features, labels), (queries, truth) = train, val
    mean, std = features.mean(0), features.std(0, correction=0) + 1e-5
    x, asked = ((part - mean).double() / std for part in (features, queries))
    present = labels.unique()
    drawn = present[torch.randperm(len(present), generator=torch.Generator().manual_seed(seed))]
    drawn = drawn[:MOST_CLASSES]
    for group in drawn.tensor_split(min(GROUPS, len(drawn))):
        known = drawn[~torch.isin(drawn, group)].sort().values
        shown, entered = torch.isin(labels, known), torch.isin(truth, drawn)
        left_out = torch.isin(truth[entered], group)
        if len(known) < 2 or not left_out.any() or left_out.all():
            continue
        targets = torch.searchsorted(known, labels[shown])
        start = x.new_zeros(len(known), x.shape[1])
        fit = minimise(x[shown], targets, start, start[:, 0], STRENGTHS[-1], **STOPPING)
        logits = asked[entered] @ fit.weight.T + fit.bias
        wrong = left_out | (known[logits.argmax(1)] != truth[entered])
        scores = References.of(features[shown], targets, seed).scores(queries[entered])
        scores["energy"] = energy(logits)
        yield {score: float(risks(scores[score], wrong).mean()) for score in SCORES}
