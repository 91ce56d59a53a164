"""Two runs on the same images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vit.console import Meter
from vit.data.sources import SplitName
from vit.errors import UserError, some_of
from vit.extensions.multilabel.average_precision import average_precision, mean_of_present
from vit.extensions.reports.intervals import Z_95
from vit.extensions.serving.proof import paired
from vit.extensions.sources.digests import same_images
from vit.runs.evaluate import Subject
from vit.runs.predictions import Predictions

RESAMPLES, SEED = 1_000, 0
"""Of the bootstrap."""


def compare(first: Path, second: Path, split: SplitName | None, args: list[str]) -> dict[str, Any]:
    """The scores of two runs in JSON types, on one process; `split` and `args` as of `Subject`.

    `difference` and its 95 % `interval` are the points by which the second run is higher. `differ`:
    the interval does not hold 0. `p_value`, of one label per image, is that of McNemar's exact
    test, which is stricter.

    UserError for other classes or other images, before anything is scored.
    """
    args = on_one_process(args)
    subjects = [Subject(run, split, args, predicting=True) for run in (first, second)]
    check_comparable(*subjects)
    split = subjects[0].split
    _, metrics, evaluated = zip(*(subject.evaluate() for subject in subjects), strict=True)
    answers = [predictions for predictions in evaluated if predictions is not None]
    if len(answers) < len(evaluated):
        raise UserError(f"no image of {split} could be read")
    metric = "map" if answers[0].multilabel else "acc1"
    scores = [each[f"{split}/{metric}"] for each in metrics]
    shared = {"runs": [str(first), str(second)], "split": split, "images": len(answers[0])}
    return shared | {"metric": metric, "scores": scores} | difference(*answers)


def on_one_process(args: list[str]) -> list[str]:
    """The options of a comparison. UserError if they name a number of processes."""
    for name in ("--trainer.devices", "--trainer.num_nodes"):
        if any(arg.startswith(name) for arg in args):
            raise UserError(f"the runs are scored in one process; leave {name} out")
    return [*args, "--trainer.devices=1", "--trainer.num_nodes=1"]


def difference(first: Predictions, second: Predictions) -> dict[str, Any]:
    """Difference of the second answers to the first and its certainty, as of `compare`."""
    row = mean_difference([(first, second)])
    low, high = row["interval"]
    shared = {"difference": row["points"], "interval": [low, high], "differ": not low <= 0 <= high}
    if first.multilabel:
        method = f"paired bootstrap, {RESAMPLES:,} draws of the images, seed {SEED}"
        return {**shared, "method": method}
    pair = paired(first.hits(), second.hits())
    return {
        **shared,
        "method": "adjusted Wald for paired proportions (Bonett and Price, 2012)",
        "gained": pair.gained,
        "lost": pair.lost,
        "p_value": pair.p_value,
    }


def check_comparable(a: Subject, b: Subject) -> None:
    """UserError unless both have the same classes, labels and images."""
    check_classes(a, b)
    named_alike = a.data.digests[a.split] == b.data.digests[b.split]
    if not (named_alike and same_images(*(each.data.image_set(each.split) for each in (a, b)))):
        raise UserError(
            f"the {a.split} images of {a.run} are not the {b.split} images of {b.run}; give images "
            "that neither was trained on: --data.root FOLDER"
        )


def check_classes(a: Subject, b: Subject) -> None:
    """UserError unless both have the same classes, one or several of them an image."""
    if a.data.multilabel != b.data.multilabel:
        several, one = (a, b) if a.data.multilabel else (b, a)
        raise UserError(f"{several.run} gives an image several labels, {one.run} gives it one")
    if a.data.classes != b.data.classes:
        other = sorted({*a.data.classes} ^ {*b.data.classes})
        which = some_of(map(repr, other), 3) if other else "in another order"
        raise UserError(f"{a.run} and {b.run} do not have the same classes: {which}")


def mean_difference(pairs: Sequence[tuple[Predictions, Predictions]]) -> dict[str, Any]:
    """The mean over pairs (before, after) of models: `points` of the score by which the second is
    better, with a 95 % `interval`; all are for the same images, in the same order.

    For one pair it is that of `difference`. Of several, an image counts by its mean: the interval
    is for other images, with these models.
    """
    if any(not np.array_equal(pairs[0][0].indices, p.indices) for pair in pairs for p in pair):
        raise UserError(
            "the runs did not read the same images; --data.loading.on_error error says why"
        )
    if pairs[0][0].multilabel:
        points, low, high = _by_draws(pairs)
    else:
        gains = np.mean([after.hits() * 1.0 - before.hits() for before, after in pairs], axis=0)
        adjusted = np.concatenate([gains, [1, -1]])
        centre, spread = adjusted.mean(), Z_95 * adjusted.std() / len(adjusted) ** 0.5
        points, low, high = 100 * np.array([gains.mean(), centre - spread, centre + spread])
    interval, images = [float(low), float(high)], len(pairs[0][0])
    return {"points": float(points), "interval": interval, "pairs": len(pairs), "images": images}


def _by_draws(pairs: Sequence[tuple[Predictions, Predictions]]) -> tuple[float, float, float]:
    """Points of mean average precision, and their interval: the same draws of images, with
    replacement, for all models."""
    labels = torch.from_numpy(np.ascontiguousarray(pairs[0][0].labels.T)).long()
    tables = [[torch.from_numpy(p.probabilities().T.copy()) for p in pair] for pair in pairs]
    random, gains = np.random.default_rng(SEED), []
    every = torch.arange(labels.shape[1])
    with Meter("bootstrap", RESAMPLES, "draws") as meter:
        for draw in range(RESAMPLES + 1):
            rows = torch.from_numpy(random.integers(len(every), size=len(every))) if draw else every
            areas = [[average_precision(p[:, rows], labels[:, rows]) for p in t] for t in tables]
            gain = [mean_of_present(after) - mean_of_present(before) for before, after in areas]
            gains.append(100 * float(np.mean(gain)))
            meter.advance(int(draw > 0))
    return gains[0], *np.percentile(gains[1:], [2.5, 97.5])
