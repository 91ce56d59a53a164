"""Three scores of unlikeness to the known classes, higher for more unlike.

Shapes: n images, k classes, d features, m neighbours, p directions.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.confidence import cut, energy
from vit.errors import UserError

SCORES = ("energy", "neighbours", "mahalanobis")
NEIGHBOURS, NEAREST, DIRECTIONS = 1_000, 10, 256
MEGABYTES = 0.9
"""At most so many for the neighbours, and for the directions and means."""
LEAST_VARIANCE = 1e-6
"""Added to each direction's, for features that hardly differ."""
ROUNDING = 1e-4
"""Of the largest score: an image in another batch, or on another processor, has the same rank."""


@dataclass(frozen=True)
class References:
    """Features that an image is compared with; made of train images, in float16."""

    neighbours: Tensor
    """`m d`, of unit length; drawn class by class."""
    directions: Tensor
    """`d p`; turn features of unit length to coordinates with identity as tied covariance."""
    centre: Tensor
    """float32 `p`: the mean of train images in these coordinates."""
    means: Tensor
    """`k p`, of the classes, from the centre."""

    def __post_init__(self) -> None:
        """ValueError for shapes that do not go together."""
        d, p = self.directions.shape
        _, of_neighbours = self.neighbours.shape
        _, of_means = self.means.shape
        if (of_neighbours, of_means, self.centre.shape) != (d, p, (p,)):
            raise ValueError("references are of different sizes")

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, seed: int = 0) -> "References":
        """References of `features` (n, d) and their classes `labels` (n,)."""
        from sklearn.covariance import ledoit_wolf  # an inference does without these
        from sklearn.decomposition import PCA

        unit = F.normalize(features.double(), dim=1)
        present, labels = labels.unique(return_inverse=True)
        (n, d), numbers = unit.shape, int(MEGABYTES * 1e6 / 2)
        p = min(DIRECTIONS, n, d, numbers // (d + len(present)))
        principal: Any = PCA(p, random_state=seed).fit(unit.numpy())
        axes = torch.from_numpy(principal.components_.T)
        members = F.one_hot(labels).double()
        averages = (members / members.sum(0)).T
        within = unit @ axes - (averages @ unit @ axes)[labels]
        covariance, _ = ledoit_wolf(within.numpy(), assume_centered=True)
        tied = torch.from_numpy(covariance) + LEAST_VARIANCE * torch.eye(p)
        directions = (axes @ torch.linalg.inv(torch.linalg.cholesky(tied)).T).half()
        turned = unit @ directions.double()
        centre = turned.mean(0)
        neighbours = unit[class_by_class(labels, seed)[: min(NEIGHBOURS, numbers // d)]].half()
        return cls(neighbours, directions, centre.float(), (averages @ (turned - centre)).half())

    def scores(self, features: Tensor) -> dict[str, Tensor]:
        """Scores (n,) of `features` (n, d).

        neighbours: 1 - cosine to the k-th nearest of train images (arXiv:2204.06507, which takes
        the Euclidean distance: the same order). k is 10, or fewer where a class has fewer of them.

        mahalanobis: the distance to the nearest mean of a class, by a covariance that the classes
        share (arXiv:1807.03888, eq. 2), shrunk by Ledoit and Wolf's rule as classes may have few
        images, in the leading principal directions of features of unit length (arXiv:2505.18032).

        UserError for features of another size.
        """
        if len(self.directions) != (size := features.shape[1]):
            raise UserError(
                f"trust.safetensors is of features of {len(self.directions)} numbers, and the "
                f"model's have {size}; delete it, or copy it again"
            )
        unit = F.normalize(features.float(), dim=1)
        nearest = min(NEAREST, max(1, len(self.neighbours) // len(self.means)))
        cosine = (unit @ self.neighbours.float().T).topk(nearest).values[:, -1]
        turned = unit @ self.directions.float() - self.centre
        distance = torch.cdist(turned, self.means.float()).amin(1)
        return {"neighbours": 1 - cosine, "mahalanobis": distance}


def all_scores(
    logits: Tensor,
    features: Tensor | None,
    references: References | None,
    *,
    multilabel: bool = False,
) -> dict[str, Tensor]:
    """SCORES (n,) by name; without references the energy alone, which needs no features."""
    scores = {"energy": energy(logits, multilabel=multilabel)}
    if references is not None:
        assert features is not None
        scores |= references.scores(features)
    return scores


def unlikeness(scores: dict[str, Tensor], usual: dict[str, Tensor], chosen: str) -> Tensor:
    """(n,) share of the measured images that are more alike, by the `chosen` score or by
    mahalanobis, whichever says more.

    `scores`: `all_scores` (n,) of the images, and `usual` (m,) of those that were measured. The
    score that tells classes that resemble the known ones best may take a picture of something else
    for a sure one: the energy does (docs/trust.md). The distance does not.
    """
    return _ranks(scores, usual, chosen).amax(0) / len(usual[chosen])


def outside(
    scores: dict[str, Tensor], usual: dict[str, Tensor], chosen: str, share: float
) -> Tensor:
    """(n,) true for images less like the known classes than that share of the measured ones.

    The arguments are those of `unlikeness`. Of images like the measured ones at most 1 - share are
    outside (split conformal prediction): the larger of two ranks is compared with that of each
    measured image among all of them and the image itself.
    """
    ranks, measured = _ranks(scores, usual, chosen), _ranks(usual, usual, chosen)
    most = measured.shape[1]
    order = _order(ranks, most)
    above = order > cut(_order(measured, most).sort().values, share, "unknown")
    for image in above.nonzero().flatten().tolist():
        among = measured + (measured >= ranks[:, image, None])  # one more where it comes before
        above[image] = order[image] > cut(_order(among, most).sort().values, share, "unknown")
    return above


def _order(ranks: Tensor, most: int) -> Tensor:
    """The larger rank of each image, `s n` up to `most` -> float64 `n`; of equal ones the larger
    mean."""
    return ranks.amax(0) + ranks.double().mean(0) / (1 + most)


def _ranks(scores: dict[str, Tensor], usual: dict[str, Tensor], chosen: str) -> Tensor:
    """`s n`: how many of the measured images are more alike, by each of the deciding scores."""
    deciding = [name for name in SCORES if name in scores and name in (chosen, "mahalanobis")]
    ranks = []
    for name in deciding:
        ordered = usual[name].sort().values
        less = scores[name] - ROUNDING * ordered.abs().amax()
        ranks.append(torch.searchsorted(ordered, less.contiguous()))
    return torch.stack(ranks)


def class_by_class(labels: Tensor, seed: int) -> Tensor:
    """Positions of `labels` (n,), a class per sample, drawn by the seed: one of each class first,
    then a second one of each, and so on."""
    from vit.data.sampler import times_before  # an inference does without it

    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return order[times_before(labels[order]).argsort(stable=True)]
