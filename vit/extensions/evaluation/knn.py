"""Weighted nearest neighbours, as in DINOv2 (dinov2/eval/knn.py).

Features are normalised to unit length; each of the k most similar training images votes for its
class with weight exp(similarity / temperature). In float64. Shapes: n images, d features, k
neighbours or classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError

NEIGHBOURS = (10, 20, 100, 200)
TEMPERATURE = 0.07

_QUERIES, _CANDIDATES = 1024, 16384
"""Images compared at a time: 128 MB of similarities for any size of the sets."""


@torch.inference_mode()
def neighbours(
    train: np.ndarray,
    queries: np.ndarray,
    k: int,
    *,
    device: str = "cpu",
    num_queries: int = _QUERIES,
    num_candidates: int = _CANDIDATES,
) -> tuple[Tensor, Tensor]:
    """Cosine similarities and indices (n, k) of the k nearest in `train` (m, d), nearest first.

    Of `queries` (n, d), on the CPU. Chunks only bound the memory.
    """
    similarities, places = [], []
    for start in range(0, len(queries), num_queries):
        rows = _unit(queries[start : start + num_queries], device)
        best = torch.empty(len(rows), 0, dtype=torch.float64, device=device)
        where = torch.empty(len(rows), 0, dtype=torch.int64, device=device)
        for first in range(0, len(train), num_candidates):
            chunk = rows @ _unit(train[first : first + num_candidates], device).T
            chunk, at = chunk.topk(min(k, chunk.shape[1]))
            best, where = torch.cat([best, chunk], 1), torch.cat([where, at + first], 1)
            best, at = best.topk(min(k, best.shape[1]))
            where = where.gather(1, at)
        similarities.append(best.cpu())
        places.append(where.cpu())
    return torch.cat(similarities), torch.cat(places)


def _unit(features: np.ndarray, device: str) -> Tensor:
    return F.normalize(torch.from_numpy(features).to(device, torch.float64), dim=1)


def vote(
    similarities: Tensor, labels: Tensor, num_classes: int, temperature: float = TEMPERATURE
) -> Tensor:
    """Probabilities (n, classes) from similarities and labels (n, k) of the neighbours."""
    weights = (similarities / temperature).softmax(1)
    votes = torch.zeros(len(labels), num_classes, dtype=weights.dtype)
    return votes.scatter_add_(1, labels, weights)


def leave_one_out(features: np.ndarray, labels: Tensor, num_classes: int, k: int = 20) -> Tensor:
    """Classes (n,) of images by the votes of their k nearest others, from features (n, d)."""
    k = min(k, len(features) - 1)
    similarities, places = neighbours(features, features, k + 1)
    # An image does not vote for itself. Copies of it may have taken its place among the nearest.
    itself = places == torch.arange(len(features))[:, None]
    others = itself.int().argsort(dim=1, stable=True)[:, :k]
    voters = labels[places.gather(1, others)]
    return vote(similarities.gather(1, others), voters, num_classes).argmax(1)


def check_neighbours(ks: Sequence[int], num_images: int, temperature: float = TEMPERATURE) -> None:
    """Raises UserError for a number of neighbours outside 1 to `num_images`."""
    if not temperature > 0:
        raise UserError(f"temperature={temperature} must be above 0")
    for k in ks:
        if not 1 <= k <= num_images:
            raise UserError(f"k={k} is not between 1 and the {num_images:,} training images")


def knn_accuracy(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    *,
    ks: Sequence[int] = NEIGHBOURS,
    temperature: float = TEMPERATURE,
    device: str = "cpu",
) -> dict[int, float]:
    """Number of neighbours -> test accuracy, from features (n, d) and labels (n,) of two sets.

    Ties go to the first class. Raises UserError as `check_neighbours`.
    """
    (features, labels), (queries, truth) = train, test
    check_neighbours(ks, len(features), temperature)
    similarities, places = neighbours(features, queries, max(ks), device=device)
    voters, right = torch.from_numpy(labels)[places], torch.from_numpy(truth)
    accuracies = {}
    for k in ks:
        hits = 0
        for rows in torch.arange(len(truth)).split(_QUERIES):
            votes = vote(similarities[rows, :k], voters[rows, :k], num_classes, temperature)
            hits += int((votes.argmax(1) == right[rows]).sum())
        accuracies[k] = hits / len(truth)
    return accuracies
