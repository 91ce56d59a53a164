"""Errors on corrupted pictures, and the corruption error.

Hendrycks and Dietterich, arXiv:1903.12261, section 4. Only the official pictures give figures that
compare with papers. An error is the share of images whose top class is another one than theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from vit.console import say
from vit.data.module import ImageData
from vit.data.sampler import evaluated
from vit.data.settings import ModelClasses
from vit.data.sources import ImageSet, Splits, all_of_one
from vit.errors import UserError, some_of
from vit.extensions.evaluation.corruptions import KINDS, Generated
from vit.extensions.evaluation.frozen import Frozen
from vit.extensions.evaluation.imagenet_variants import NUM_CLASSES, is_wordnet, output_numbers

Errors = dict[str | None, list[float]]
"""By kind, one for each strength; that of None is of the images as they are."""

# fmt: off
_ALEXNET = (
    0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572,
    0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500)
# fmt: on
ALEXNET: Errors = {kind: [error] for kind, error in zip(KINDS, _ALEXNET, strict=True)}
"""Means over the strengths, which the authors published."""


def summary(errors: Errors, reference: Errors | None = None) -> dict[str, Any]:
    """Rows by kind, and means. With the errors of a `reference`, such as ALEXNET, also the
    corruption errors: 1 for a model that errs alike, None for a reference that does not err."""
    rows: list[dict[str, Any]] = [
        {"kind": kind, "errors": dict(enumerate(several, start=1)), "mean_error": fmean(several)}
        for kind, several in errors.items()
        if kind is not None
    ]
    means = {"clean_error": errors[None][0] if None in errors else None}
    means["mean_error"] = fmean(row["mean_error"] for row in rows)
    if reference is not None:
        for row in rows:
            unit = fmean(reference[row["kind"]])
            row["ce"] = row["mean_error"] / unit if unit else None
        parts = [row["ce"] for row in rows]
        means["mce"] = None if None in parts else fmean(parts)
    return {**means, "rows": rows}


@dataclass(frozen=True)
class Pictures:
    """Images whose labels number `classes`."""

    images: ImageSet
    classes: Sequence[str]

    def splits(self, model: ModelClasses) -> Splits:
        """Images as test, labelled by a model's classes. UserError for several labels per image,
        and for a class that the model lacks."""
        places = {name: place for place, name in enumerate(model.names)}
        labels = self.images.labels
        if labels.ndim == 2:
            raise UserError("these images have several labels each; one is needed here")
        used = (self.classes[label] for label in np.unique(labels))
        if lacking := some_of(repr(name) for name in used if name not in places):
            raise UserError(f"the images have classes that the model lacks: {lacking}")
        numbers = np.array([places.get(name, -1) for name in self.classes])
        return all_of_one(replace(self.images, labels=numbers[labels]), model)


@dataclass(frozen=True)
class Source:
    """Pictures that a model is tested on."""

    name: str
    """generated, ImageNet-C or CIFAR-C."""
    sets: dict[str | None, list[Pictures]]
    """Of each kind, one for each strength. Where pictures are generated, all are the images as they
    are, and there is one of None, too."""
    limit: int | None = None
    """Images of each set at most, drawn."""
    seed: int = 0
    """Of generated pictures."""

    def read_by(self, frozen: Frozen, kind: str | None, strength: int) -> ImageData:
        """A set as a model sees it. UserError as for Pictures."""
        pictures, preprocess = self.sets[kind][strength - 1], frozen.preprocess
        images = pictures.images.select(np.array(evaluated(len(pictures.images), self.limit, 0)))
        if kind is not None and self.name == "generated":
            items = Generated(images, preprocess, kind, strength, self.seed)
            images = replace(images, items=items)
        if kind is not None and self.name != "CIFAR-C":  # cropped already
            preprocess = preprocess.changed(crop_fraction=1.0)
        names = output_names(frozen, pictures.classes)
        splits = Pictures(images, pictures.classes).splits(ModelClasses(names=names))
        data = frozen.images(images=splits).read_as(classes=names)
        data.preprocess = preprocess
        return data

    def errors(self, frozen: Frozen) -> tuple[Errors, int]:
        """Errors of a model, and the number of images of a set, without unreadable ones."""
        errors: Errors = {kind: [] for kind in self.sets}
        count = 0
        for kind, several in self.sets.items():
            for strength in range(1, len(several) + 1):
                outputs = frozen.extractor(self.read_by(frozen, kind, strength), "test")
                errors[kind].append(float((outputs.values.argmax(1) != outputs.labels).mean()))
                count = len(outputs.labels)
                name = f"{kind} {strength}" if kind else "without corruption"
                say(f"{name}: {100 * errors[kind][-1]:.1f} % of {count:,} images are wrong")
        return errors, count


def output_names(frozen: Frozen, folders: Sequence[str]) -> list[str]:
    """The classes by output: the model's, or the names of `folders` if these are ImageNet's."""
    names = frozen.classes or []
    if frozen.num_classes == NUM_CLASSES and is_wordnet(folders) and not is_wordnet(names):
        ids = sorted(folders)
        return [ids[number] for number in output_numbers(names)]
    if not names:
        raise UserError("the model names no classes, so the labels of these images are unknown")
    return names
