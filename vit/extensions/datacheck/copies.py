"""Copies of one picture among those of a data set, above all in two of its splits.

Shapes: n images, d features, p pairs, s pixels of a side of a small picture.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit.console import Meter
from vit.data.sources import SPLITS
from vit.extensions.datacheck.check import SIDE, Finding, Pictures, near_pairs
from vit.extensions.evaluation.knn import neighbours

LIKE = 0.85
"""Correlation of small pictures that confirms hashes close together."""
NEAREST = 3
"""Neighbours that are compared with each image; copies are nearest in 98 % of cases."""
SHRINKAGE = 0.1
"""Share of the mean variance that is added to the variance of each direction."""
ALIKE = 0.95
"""Correlation of small pictures that confirms neighbours: it is above it for crops of a tenth, and
among 13,000 pairs of neighbours in CIFAR-10 for copies alone."""


_CROPS = range(SIDE, 23, -1)
"""Sides that a crop may have within the whole picture: down to three quarters."""
_PAIRS = 512
"""Pairs that are compared at a time."""


def ranked(pictures: Pictures) -> tuple[np.ndarray, np.ndarray]:
    """The images that can be opened, `n`: test, val, train, the largest first; and for each the
    first one with the same bytes."""
    facts = pictures.facts
    order = np.lexsort((-facts["height"].astype(int) * facts["width"], -pictures.split))
    order = order[pictures.opened[order]]
    _, firsts, places = np.unique(facts["digest"][order], return_index=True, return_inverse=True)
    return order, order[firsts[places]]


def distinct(pictures: Pictures) -> np.ndarray:
    """The images that a comparison makes sense of, each file once."""
    order, firsts = ranked(pictures)
    return order[(order == firsts) & ~pictures.facts["blank"][order]]


def hash_pairs(pictures: Pictures) -> np.ndarray:
    """Pairs `p 2` of images that are re-encoded, resized or mirrored copies."""
    images = distinct(pictures)
    small = pictures.facts["small"][images]
    pairs = near_pairs(small)
    return images[pairs[likeness(small, pairs) >= LIKE]]


def feature_pairs(pictures: Pictures, features: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Pairs `p 2` of `images` `n` that are copies, cropped ones too, by their features `n d`."""
    places = np.full(len(pictures.facts), -1)
    places[images] = np.arange(len(images))
    once = distinct(pictures)
    if not len(once):
        return np.empty((0, 2), dtype=np.int64)
    values = _evened(features[places[once]])
    _, near = neighbours(values, values, NEAREST + 1)
    pairs = np.stack([np.arange(len(values)).repeat(near.shape[1]), near.numpy().ravel()], 1)
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)
    return once[pairs[likeness(pictures.facts["small"][once], pairs) >= ALIKE]]


def _evened(features: np.ndarray) -> np.ndarray:
    """Features `n d` in principal directions of about equal variance: in a few large ones, which
    all images of a class share, copies are no nearer than others."""
    centred = features.astype(np.float64) - features.mean(0)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    variances = variances.clip(0) + SHRINKAGE * variances.mean() + np.finfo(np.float64).tiny
    return centred @ (axes / np.sqrt(variances))


def likeness(small: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Correlation `p` of the two pictures of each pair, where one may be mirrored or a crop."""
    correlations = [np.empty(0, dtype=np.float32)]
    with Meter("comparing", len(pairs), "pairs") as meter:
        for start in range(0, len(pairs), _PAIRS):
            some = pairs[start : start + _PAIRS]
            a, b = (torch.from_numpy(small[side].astype(np.float32)) for side in some.T)
            tries = [_within(*order) for b in (b, b.flip(2)) for order in ((a, b), (b, a))]
            correlations.append(torch.stack(tries).amax(0).numpy())
            meter.advance(len(some))
    return np.concatenate(correlations)


def _within(whole: Tensor, part: Tensor) -> Tensor:
    """Largest correlation `p` of `part` `p s s` with a square of `whole` `p s s`."""
    best = whole.new_full((len(whole),), -1.0)
    for side in _CROPS:
        scaled = F.interpolate(part[:, None], (side, side), mode="bilinear", antialias=True)
        scaled = scaled - scaled.mean((2, 3), keepdim=True)
        length = scaled.square().sum((1, 2, 3))[:, None, None]
        products = F.conv2d(whole[None], scaled, groups=len(whole))[0]
        means, squares = (F.avg_pool2d(power, side, 1) for power in (whole, whole.square()))
        spread = (squares - means.square()).clamp_min(1e-3) * side**2
        best = best.maximum((products / (spread * length.clamp_min(1e-3)).sqrt()).amax((1, 2)))
    return best


def kept_copies(order: np.ndarray, firsts: np.ndarray, pairs: np.ndarray) -> dict[int, int]:
    """Image -> the image that is kept in its place.

    Args:
        order: n images, the best first.
        firsts: The best one with the same bytes, for each of them.
        pairs: Copies with other bytes, `p 2`.
    """
    partners: dict[int, list[int]] = {}
    for a, b in pairs.tolist():
        partners.setdefault(a, []).append(b)
        partners.setdefault(b, []).append(a)
    substitutes: dict[int, int] = {}
    seen: dict[int, int] = {}  # kept images -> their ranks, so far
    for rank, (image, first) in enumerate(zip(order.tolist(), firsts.tolist(), strict=True)):
        better = [other for other in partners.get(image, ()) if other in seen]
        if first != image:
            substitutes[image] = substitutes[first] if first in substitutes else first
        elif better:
            substitutes[image] = min(better, key=lambda other: seen[other])
        else:
            seen[image] = rank
    return substitutes


def copy_findings(pictures: Pictures, pairs: np.ndarray) -> Iterator[Finding]:
    """Images that are files of the same bytes as another, or copies by `pairs` `p 2`."""
    facts, split = pictures.facts, pictures.split
    for image, original in kept_copies(*ranked(pictures), pairs).items():
        other, here, other_split = (
            pictures.names.name(original),
            SPLITS[split[image]],
            SPLITS[split[original]],
        )
        same = facts["digest"][image] == facts["digest"][original]
        shared = {"subject": pictures.names.name(image), "image": image, "other": original}
        kind, detail = "identical" if same else "copy", f"copy of {other}"
        if here != other_split:
            kind, detail = "leak", f"in {here}, copy of {other} in {other_split}"
        yield Finding(kind=kind, detail=detail, **shared)
        label, its = pictures.label(image), pictures.label(original)
        if label != its:
            yield Finding(kind="conflict", detail=f"{label}, but {its} in {other}", **shared)
