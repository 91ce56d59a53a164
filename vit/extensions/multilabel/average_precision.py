"""Average precision, and the threshold of each class with the highest F1.

Shapes: b batch, k classes, n images.
"""

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

EVEN = 0.5
"""Threshold of a class for which none was chosen: a probability above it is a yes."""

SORTED_TOGETHER = 2**22
"""Scores that are sorted at a time: some 200 MB."""


class MeanAveragePrecision(Metric):
    """Mean average precision over the classes that have images, from every score.

    torchmetrics sorts class by class and keeps labels of eight bytes.
    """

    full_state_update = False
    preds: list[Tensor]
    target: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.thresholds: Tensor | None = None
        """float32 `k` by `best_thresholds`, of the last `compute`."""
        for name in ("preds", "target"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, probabilities: Tensor, labels: Tensor) -> None:
        """`probabilities` and `labels` b k."""
        self.preds.append(probabilities)
        self.target.append(labels.to(torch.uint8))

    def compute(self) -> Tensor:
        scores, labels = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        n, k = scores.shape
        together = max(1, SORTED_TOGETHER // max(n, 1))
        parts = [
            (scores[:, i : i + together].T, labels[:, i : i + together].T)
            for i in range(0, k, together)
        ]
        self.thresholds = torch.cat([best_thresholds(*part) for part in parts])
        return mean_of_present(torch.cat([average_precision(*p) for p in parts])).float()


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Area under the precision-recall steps `k` of `scores` and `labels` `k n`; NaN without labels.

    Equal scores enter the ranking together, so the order of the images does not matter.
    """
    n = scores.shape[1]
    if not n:
        return scores.new_full((len(scores),), torch.nan)
    _, relevant, last = _ranking(scores, labels)
    hits = _hits(relevant)
    precision = (hits / torch.arange(1, n + 1, device=scores.device)).gather(1, last)
    return (precision * relevant).sum(1) / hits[:, -1]


def mean_of_present(areas: Tensor) -> Tensor:
    """Mean without NaN, which is of classes without images; 0 if there is no other. A class of
    which a set has no image says nothing about a model."""
    return areas.nanmean().nan_to_num()


def best_thresholds(scores: Tensor, labels: Tensor) -> Tensor:
    """Thresholds of highest F1, float32 `k`, from scores and labels `k n`; 0.5 without labels.

    A threshold is the middle between the lowest score above it and the next; of equal F1 the
    highest is taken.
    """
    k, n = scores.shape
    even = torch.full((k,), EVEN, device=scores.device)
    if not n:
        return even
    scores = scores.to(torch.float32)
    ranked, relevant, last = _ranking(scores, labels)
    hits = _hits(relevant)
    f1 = 2 * hits / (torch.arange(1, n + 1, device=scores.device) + hits[:, -1:])
    # A cut falls between different scores, and a score of 0 is above no threshold.
    f1 = f1.masked_fill((last != torch.arange(n, device=scores.device)) | (ranked <= 0), 0)
    highest, cut = f1.max(1, keepdim=True)
    below = torch.cat([ranked[:, 1:], ranked.new_zeros(k, 1)], 1)
    lowest, following = (values.gather(1, cut)[:, 0] for values in (ranked, below))
    middle = (lowest + following) / 2
    middle = torch.where(middle < lowest, middle, following)  # two neighbours in float32
    return torch.where(highest[:, 0] > 0, middle, even)


def _ranking(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores `k n`, highest first; their labels; and of each place the last with the same score."""
    n = scores.shape[1]
    ranked, order = scores.sort(dim=1, descending=True)
    last = torch.arange(n, device=scores.device).repeat(len(scores), 1)
    last[:, :-1].masked_fill_(ranked[:, :-1] == ranked[:, 1:], n)
    return ranked, labels.gather(1, order), last.flip(1).cummin(1).values.flip(1)


def _hits(relevant: Tensor) -> Tensor:
    """Images that have the class up to each place, `k n`; floats for exact division."""
    exact = torch.float32 if relevant.device.type == "mps" else torch.float64
    return relevant.cumsum(1, dtype=torch.int64).to(exact)
