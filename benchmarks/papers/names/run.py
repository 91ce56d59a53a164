"""Names, photos and both on planted geometry: how far from the photos may the names be?

    python -m benchmarks.papers.names.run

Each of ten classes has a direction, and the mean of its photos one at a known angle to it, in 64
dimensions. Texts and photos each have a part of their own that all classes share, as in CLIP
("modality gap", arXiv:2203.02053), and photos have noise; all are divided by their norms. Compared
on 500 other photos: the names alone; a logistic regression on the photos alone, as `vit fit -c
probe` fits it; and `vit fit -c names`, with its fixed strength and by leave-one-out. No weights and
no photo of a real CLIP take part.
"""

import math
import statistics
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.lib.harness import arguments, document, publish
from vit.console import Meter
from vit.extensions.adaptation.named_head import USUAL
from vit.extensions.adaptation.ridge import ridge_towards
from vit.logistic import fit_head
from vit.training.callbacks.linear_probe import WIDE_STRENGTHS

CLASSES, WIDTH, HELD_OUT = 10, 64, 50
ANGLES, SHOTS, DRAWS = (30, 60, 85), (1, 2, 5, 20), 200
PROBES = 20
"""Draws for the logistic regression, which takes most of the time."""
GAP, NOISE = 1.5, 1.5


class Geometry:
    """Directions of texts and of photos, by a seed."""

    def __init__(self, angle: float, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        names, other = (F.normalize(self._normal(CLASSES), dim=1) for _ in range(2))
        other = F.normalize(other - (other * names).sum(1, keepdim=True) * names, dim=1)
        means = math.cos(angle) * names + math.sin(angle) * other
        of_texts, of_photos = GAP * F.normalize(self._normal(2), dim=1)
        self.rows = F.normalize(names + of_texts, dim=1)
        self._means = F.normalize(means + of_photos, dim=1)

    def _normal(self, count: int) -> Tensor:
        return torch.randn(count, WIDTH, generator=self._generator, dtype=torch.float64)

    def photos(self, each: int) -> tuple[Tensor, Tensor]:
        """Features `n d` and labels `n` of so many photos of every class."""
        labels = torch.arange(CLASSES).repeat_interleave(each)
        noise = NOISE * self._normal(len(labels)) / math.sqrt(WIDTH)
        return F.normalize(self._means[labels] + noise, dim=1), labels


def accuracies(angle: float, shots: int, seed: int) -> dict[str, float]:
    """The share of other photos that each head names."""
    geometry = Geometry(math.radians(angle), seed)
    (x, y), (others, labels) = geometry.photos(shots), geometry.photos(HELD_OUT)
    fixed, chosen = (ridge_towards(x, y, geometry.rows, s) for s in (USUAL, None))
    heads = {"names": (geometry.rows, 0.0)}
    heads |= {"fixed": (fixed.weight, fixed.bias), "chosen": (chosen.weight, chosen.bias)}
    if seed < PROBES:
        probe = fit_head(x, y, CLASSES, WIDE_STRENGTHS)
        heads["probe"] = probe.weight, probe.bias
    scores = {name: others @ weight.T + bias for name, (weight, bias) in heads.items()}
    return {name: float((s.argmax(1) == labels).double().mean()) for name, s in scores.items()}


def row(angle: float, shots: int, draws: int) -> dict[str, Any]:
    """Mean accuracies over the draws, and the standard errors of the means."""
    results = [accuracies(angle, shots, seed) for seed in range(draws)]
    columns = {name: [each[name] for each in results if name in each] for name in results[0]}
    means = {name: statistics.mean(values) for name, values in columns.items()}
    errors = {name: statistics.stdev(v) / math.sqrt(len(v)) for name, v in columns.items()}
    return {"angle": angle, "shots": shots, "accuracy": means, "error": errors}


def main() -> None:
    options = arguments(__doc__).parse_args()
    draws = 2 if options.quick else DRAWS
    cells = [(angle, shots) for angle in ANGLES for shots in SHOTS]
    with Meter("planted geometry", len(cells), "cells") as meter:
        rows = []
        for angle, shots in cells:
            rows.append(row(angle, shots, draws))
            meter.advance()
    facts = {"draws": draws, "probes": min(draws, PROBES), "classes": CLASSES}
    facts["width"] = WIDTH
    publish(document("names and photos", rows, **facts), options, "papers/names/results")


if __name__ == "__main__":
    main()
