"""Errors on corrupted pictures, and the corruption error.

Hendrycks and Dietterich, arXiv:1903.12261, section 4. Only the official pictures give figures that
compare with papers. An error is the share of images whose top class is another one than theirs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vit.console import Meter
from vit.data.corruptions import KINDS, STRENGTHS, Corrupted, Version, table_for
from vit.data.loaders import make_dataset, range_loader
from vit.data.sampler import evaluated
from vit.data.sources import ImageSet
from vit.errors import UserError, some_of
from vit.evaluation.frozen import Frozen
from vit.evaluation.imagenet_variants import NUM_CLASSES, is_wordnet
from vit.preprocessing import Preprocess

Errors = dict[Version, float]
"""By kind and strength; that of None is of the images as they are."""

# Means over the strengths from the authors' spreadsheet; 43.5 % of clean images in their Table 1.
# fmt: off
_ALEXNET = (
    0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572,
    0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500)
# fmt: on
ALEXNET: Errors = {(k, s): e for k, e in zip(KINDS, _ALEXNET, strict=True) for s in STRENGTHS}
ALEXNET[None] = 0.4348


def summary(errors: Errors, reference: Errors | None = None) -> dict[str, Any]:
    """Rows by kind, and means. With the errors of a `reference`, or ALEXNET's, also the corruption
    errors and relative corruption errors of section 4.1.

    These are 1 for a model that errs alike; None where the reference does not err, or not more
    than on images as they are, and without errors on those.
    """
    clean, other = errors.get(None), (reference or {}).get(None)
    rows = []
    for kind in dict.fromkeys(version[0] for version in errors if version is not None):
        strengths = {v[1]: error for v, error in errors.items() if v is not None and v[0] == kind}
        row: dict[str, Any] = {"kind": kind, "errors": strengths}
        row["mean_error"] = mean = _mean(strengths.values())
        if reference is not None:
            base = _mean(e for v, e in reference.items() if v is not None and v[0] == kind)
            row["ce"] = _ratio(mean, base)
            row["relative_ce"] = None
            if clean is not None and other is not None:
                row["relative_ce"] = _ratio(mean - clean, base - other)
        rows.append(row)
    means = {"mean_error": "mean_error"}
    if reference is not None:
        means |= {"mce": "ce", "relative_mce": "relative_ce"}
    found = {name: _mean(row[of] for row in rows) for name, of in means.items()}
    return {"clean_error": clean, **found, "rows": rows}


def _mean(values: Iterable[float | None]) -> Any:
    """None if one of the values is."""
    listed = [*values]
    known = [value for value in listed if value is not None]
    return sum(known) / len(known) if len(known) == len(listed) else None


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


@dataclass(frozen=True)
class Source:
    """Sets of images, found when they are needed, and the classes that their labels number."""

    classes: Sequence[str]
    sets: dict[Version, Callable[[], ImageSet]]
    """Of official pictures, one for each kind and strength; else one of the images as they are."""
    kinds: Sequence[str] = tuple(KINDS)
    name: str = "generated"
    is_cropped: bool = False
    """The corrupted pictures have been cropped before."""


def relabelled(images: ImageSet, classes: Sequence[str], names: Sequence[str]) -> ImageSet:
    """Images whose labels number `classes`, labelled by the places of these in `names`.

    UserError for several labels per image, and for a class that is not among the names.
    """
    if images.labels.ndim == 2:
        raise UserError("these images have several labels each; one is needed here")
    places = {name: place for place, name in enumerate(names)}
    used = (classes[label] for label in np.unique(images.labels))
    if lacking := some_of(repr(name) for name in used if name not in places):
        raise UserError(f"the images have classes that the model lacks: {lacking}")
    numbers = np.array([places.get(name, -1) for name in classes])
    return ImageSet(images.items, numbers[images.labels], images.names)


def output_names(frozen: Frozen, folders: Sequence[str]) -> list[str]:
    """The classes by output: the model's, or the names of `folders` if these are ImageNet's."""
    names = frozen.classes or []
    if frozen.num_classes == NUM_CLASSES and is_wordnet(folders) and not is_wordnet(names):
        return sorted(folders)
    if not names:
        raise UserError("the model names no classes, so the labels of these images are unknown")
    return names


def top1_errors(
    frozen: Frozen,
    source: Source,
    names: Sequence[str],
    versions: Sequence[Version],
    *,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[Errors, int]:
    """The errors of a model whose outputs have `names`, and the number of images of each version.

    UserError for what cannot be read, and for outputs that are not finite.
    """

    def images(version: Version) -> ImageSet:
        found = relabelled(source.sets[version](), source.classes, names)
        return found.select(np.array(evaluated(len(found), limit, 0)))

    if source.name == "generated":
        return _errors(frozen, images(None), versions, frozen.preprocess, seed)
    errors, count = {}, 0
    for version in versions:
        preprocess = frozen.preprocess
        if source.is_cropped and version is not None:
            preprocess = preprocess.changed(crop_fraction=1.0)
        found, count = _errors(frozen, images(version), [None], preprocess, seed, version)
        errors[version] = found[None]
    return errors, count


def _errors(
    frozen: Frozen,
    images: ImageSet,
    versions: Sequence[Version],
    preprocess: Preprocess,
    seed: int,
    title: Version = None,
) -> tuple[Errors, int]:
    """The errors of versions that are drawn from the images, and the number of images."""
    reading, table = frozen.reading, table_for(preprocess.image_size)
    dataset = make_dataset(
        images, preprocess, None, seed=0, on_error=reading.on_error, in_memory=lambda _: None
    )
    step = max(1, reading.batch_size // len(versions))
    read = Corrupted(dataset, versions, seed, table)
    loader = range_loader(read, len(images), step, num_workers=reading.num_workers)
    name = "pictures" if title is None else f"{title[0]} {title[1]}"
    wrong, seen = np.zeros(len(versions)), 0
    with Meter(name, len(images) * len(versions), "img") as meter:
        for first, (pixels, labels) in zip(range(0, len(images), step), loader, strict=True):
            meter.advance(min(step, len(images) - first) * len(versions))
            if not len(labels):  # of unreadable images
                continue
            parts = pixels.flatten(0, 1).split(reading.batch_size)
            logits = [frozen.extractor.rows(part, preprocess, name) for part in parts]
            answers = torch.cat(logits).argmax(-1).cpu().view(len(labels), -1)
            wrong += (answers != labels[:, None]).sum(0).numpy()
            seen += len(labels)
    if not seen:
        raise UserError(f"none of the {len(images):,} images could be read")
    return dict(zip(versions, (wrong / seen).tolist(), strict=True)), seen
