"""Labels in doubt.

A probe on frozen features is fitted without a fifth of the images and asked for the labels of that
fifth; where it is confidently of another opinion, the label is in doubt. Confident learning
(arXiv:1911.00068), as in cleanlab. Shapes: n images, d features, k classes.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vit.console import Meter, note
from vit.data.manifest import SEPARATOR
from vit.data.sources import SPLITS, ImageSet, group_numbers
from vit.extensions.datacheck.check import Finding, Pictures
from vit.extensions.evaluation.frozen import Frozen
from vit.logistic import STRENGTHS, held_out_logits, total_loss

FOLDS = 5
"""Parts of the images whose labels are predicted from the others; a class with fewer images is
learned, but none of its labels is in doubt."""
SAMPLE = 2_000
"""Images on which the strength of the probe is chosen."""
FITTED = 20_000
"""Images to which a probe is fitted, at most: more hardly change what it says of others."""


def held_out_scores(
    features: np.ndarray, labels: np.ndarray, num_classes: int, groups: np.ndarray | None = None
) -> Tensor:
    """Logits `n k` of a probe that has not seen the image, nor others of its group; labels are `n`,
    or multi-hot `n k`, groups int64 `n`."""
    x, y = torch.from_numpy(features).double(), torch.from_numpy(labels)
    whole = None if groups is None else torch.from_numpy(groups)
    z = (x - x.mean(0)) / (x.std(0, correction=0) + 1e-5)
    some = torch.randperm(len(z), generator=torch.Generator().manual_seed(1))[:SAMPLE]

    with Meter("predicting labels", len(STRENGTHS) + 1, "probes") as meter:

        def loss(strength: float) -> float:
            of_some = None if whole is None or len(whole[some].unique()) < FOLDS else whole[some]
            logits = held_out_logits(z[some], y[some], num_classes, strength, groups=of_some)
            meter.advance()
            return float(total_loss(logits, y[some]))

        strength = min(STRENGTHS, key=loss)
        options = {"groups": whole, "folds": FOLDS, "most": FITTED}
        return held_out_logits(z, y, num_classes, strength, **options)


def confident_errors(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Images whose labels are in doubt, the surest first, from probabilities `n k`, labels `n`.

    As many as are off the diagonal of the confident joint (arXiv:1911.00068, equations 1 and 2): a
    class is possible where its probability reaches the mean over the images with its label, and of
    several the likeliest counts. They are those whose own label is least probable: cleanlab's
    "low_self_confidence", without images whose own label is the likeliest.
    """
    count, num_classes = probabilities.shape
    labelled = probabilities[np.arange(count), labels]
    sizes = np.bincount(labels, minlength=num_classes)
    thresholds = np.bincount(labels, labelled, num_classes) / np.maximum(sizes, 1)
    possible = (probabilities >= thresholds - 1e-6) & (sizes > 0)
    likeliest = probabilities.argmax(1)
    meant = np.where(possible.sum(1) > 1, likeliest, possible.argmax(1))
    errors = possible.any(1) & (meant != labels) & (likeliest != labels)
    rows = np.argsort(labelled, kind="stable")[: errors.sum()]
    return rows[likeliest[rows] != labels[rows]]


def doubts(pictures: Pictures, features: np.ndarray, images: np.ndarray) -> Iterator[Finding]:
    """Labels of `images` `n` that are in doubt by their features `n d`, the surest first."""
    labels, classes = pictures.labels[images], pictures.classes
    counts = labels.sum(0) if pictures.multilabel else np.bincount(labels)
    if not classes or counts.max() < FOLDS:
        note(f"labels are not checked: no class has {FOLDS} images that can be opened")
        return
    groups = None if pictures.groups is None else group_numbers(pictures.groups)[images]
    if groups is not None and len(np.unique(groups)) < FOLDS:
        note(f"labels are not checked: there are fewer than {FOLDS} groups")
        return
    scores = held_out_scores(features, labels, len(classes), groups)
    if not pictures.multilabel:
        probabilities = scores.softmax(1).numpy()
        for row in confident_errors(probabilities, labels).tolist():
            label, best = labels[row], int(probabilities[row].argmax())
            if counts[label] >= FOLDS:
                pair = float(probabilities[row, label]), float(probabilities[row, best])
                yield _doubt(pictures, int(images[row]), classes[best], *pair)
        return
    probabilities, doubted = scores.sigmoid().numpy(), []
    for k in np.flatnonzero(counts >= FOLDS).tolist():
        pair, has = np.stack([1 - probabilities[:, k], probabilities[:, k]], 1), labels[:, k]
        rows = confident_errors(pair, has.astype(np.int64))
        doubted += [
            (*pair[row, [int(has[row]), 1 - int(has[row])]].tolist(), row, k) for row in rows
        ]
    for labelled, other, row, k in sorted(doubted):
        right = np.flatnonzero(labels[row] != (np.arange(len(classes)) == k))
        suggested = SEPARATOR.join(classes[at] for at in right)
        yield _doubt(pictures, int(images[row]), suggested, labelled, other)


def _doubt(pictures: Pictures, image: int, label: str, labelled: float, other: float) -> Finding:
    return Finding(
        kind="doubt",
        subject=pictures.names.name(image),
        detail=f"{pictures.label(image)} {labelled:.1%}, {label} {other:.1%}",
        image=image,
        suggested=label,
        certainty=other,
    )


def features_of(frozen: Frozen, root: str, pictures: Pictures) -> tuple[np.ndarray, np.ndarray]:
    """Features `n d` of the images that can be opened, and their numbers `n`."""
    opened = pictures.opened
    parts: dict[str, ImageSet] = {}
    for number, name in enumerate(SPLITS):
        images = pictures.splits.get(name)
        if images is not None:
            parts[name] = images.select(np.flatnonzero(opened[pictures.split == number]))
    data = frozen.images(images=replace(pictures.splits, **parts))
    values = [frozen.extractor(data, name).values for name in SPLITS if len(parts.get(name, ()))]
    return np.concatenate(values), np.flatnonzero(opened)
