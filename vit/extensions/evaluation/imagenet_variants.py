"""ImageNet-1k's other test sets: ReaL labels, V2, A and R, for a model with its 1000 classes.

ReaL: any number of labels per image of val (arXiv:2006.07159; google-research/
reassessed-imagenet, real.json). V2: folders 0 to 999 (arXiv:1902.10811). A and R: 200 WordNet ids
each, and only the logits of these 200 count (arXiv:1907.07174, arXiv:2006.16241; eval.py in
hendrycks/natural-adv-examples and hendrycks/imagenet-r).
Classes are ordered by WordNet id. Shapes: n images, k classes.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vit.confidence import top_classes
from vit.data.sources import PathList
from vit.errors import UserError, some_of
from vit.extensions.formats.class_names import imagenet_numbers
from vit.extensions.reports.reliability import expected_calibration_error

NUM_CLASSES = 1000
NUM_SHIFTED = 200
"""Classes of ImageNet-A, and of ImageNet-R."""

_WORDNET_ID = re.compile(r"n\d{8}")
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class Score:
    """Row of the table: the accuracy on one set."""

    name: str
    images: int
    acc1: float
    acc5: float | None = None
    ece: float | None = None
    """Expected calibration error."""


def score(
    name: str,
    logits: np.ndarray,
    labels: np.ndarray,
    *,
    among: np.ndarray | None = None,
    temperature: float = 1.0,
) -> Score:
    """Top-1, top-5 and calibration of `logits` (n, k) against `labels` (n,).

    `among`: the allowed classes, as for A and R; None allows all. Ties go to the first class.
    """
    if among is not None:
        places = np.full(logits.shape[1], -1)
        places[among] = np.arange(len(among))
        logits, labels = logits[:, among], places[labels]
    ranked = top_classes(torch.from_numpy(np.ascontiguousarray(logits)), 5)[1].numpy()
    hits = ranked == labels[:, None]
    return Score(
        name=name,
        images=len(labels),
        acc1=float(hits[:, 0].mean()),
        acc5=float(hits.any(1).mean()),
        ece=expected_calibration_error(logits, labels, temperature=temperature),
    )


def score_real(logits: np.ndarray, labels: Sequence[Sequence[int]]) -> Score:
    """Accuracy of the largest of `logits` (n, k) on the images with any of `labels` (n lists)."""
    rows = [row for row, answers in enumerate(labels) if answers]
    if not rows:
        raise UserError("no image of val has a ReaL label")
    hits = [k in labels[row] for row, k in zip(rows, logits[rows].argmax(1), strict=True)]
    return Score(name="ReaL", images=len(rows), acc1=float(np.mean(hits)))


def is_wordnet(names: Sequence[str]) -> bool:
    """True for 1000 different WordNet ids, such as n01440764."""
    return len(set(names)) == NUM_CLASSES and all(_WORDNET_ID.fullmatch(name) for name in names)


def output_numbers(names: Sequence[str] | None) -> list[int]:
    """ImageNet's class index of each output of a model of 1000 classes with these names, or with
    none. UserError for names of other classes than ImageNet's."""
    numbers = imagenet_numbers(names) if names else list(range(NUM_CLASSES))
    if numbers is None:
        raise UserError(
            f"the model's 1000 classes, {some_of(map(repr, names or ()), 3)}, are not ImageNet's"
        )
    return numbers


def class_folders(folder: str | Path) -> tuple[Path, list[str]]:
    """The parent of the folders named by WordNet id, `folder` or its val/, and their names.

    UserError if there are none.
    """
    top = Path(folder).expanduser()
    for place in (top, top / "val"):
        if place.is_dir():
            with os.scandir(place) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir())
            names = [name for name in names if _WORDNET_ID.fullmatch(name)]
            if names:
                return place, names
    raise UserError(
        f"{top} has no folders named by WordNet id, such as n01440764; sort its images into them"
    )


def shifted_classes(labels: np.ndarray, folder: str | Path) -> np.ndarray:
    """The classes of ImageNet-A or -R, from the labels (n,) of its images.

    UserError unless there are 200: with a missing folder, the task would be easier.
    """
    classes = np.unique(labels)
    if len(classes) != NUM_SHIFTED:
        raise UserError(
            f"{folder} has images of {len(classes)} classes, ImageNet-A and -R have {NUM_SHIFTED}; "
            "unpack it again"
        )
    return classes


def read_real(file: str | Path) -> list[list[int]]:
    """real.json: the correct labels of each image of val, ordered by its number."""
    path = Path(file).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if all(0 <= label < NUM_CLASSES for labels in content for label in labels):
            return content
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"cannot read the ReaL labels {path}: {error}; real.json is in "
            "github.com/google-research/reassessed-imagenet"
        ) from error
    raise UserError(f"{path} is not a list of lists of labels from 0 to 999; give real.json")


def real_labels(real: list[list[int]], names: PathList, file: str | Path) -> list[list[int]]:
    """The ReaL labels of each image of val, by the number in its name.

    UserError for a name without a number, and for a number without labels.
    """
    labels = []
    for name in names:
        if (match := _VAL_NUMBER.search(name)) is None:
            raise UserError(
                f"{name} is not named as ImageNet's val (ILSVRC2012_val_00000001.JPEG); its "
                "number selects the ReaL labels"
            )
        if not 1 <= (number := int(match[1])) <= len(real):
            raise UserError(f"{file} has no label for image {number} of val; download it again")
        labels.append(real[number - 1])
    return labels
