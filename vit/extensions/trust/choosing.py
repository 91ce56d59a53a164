"""The score of unknown images, chosen on the images of a finished run.

Shapes: n images, k classes, d features.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.confidence import TRUST
from vit.console import Meter
from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.errors import UserError, some_of
from vit.extensions.reports.finished import finished_run
from vit.extensions.trust.rejection import choose
from vit.extensions.trust.trust import Trust
from vit.extensions.trust.unknown import References, all_scores, class_by_class, unlikeness
from vit.inference.classifier import Classifier, load
from vit.runs.evaluate import data_options
from vit.runs.lineage import known_by, note_seen
from vit.runs.mistakes import check_given
from vit.runs.records import recorded_options
from vit.runs.scoring import accuracies

TRAIN, IMAGES = 1_000, 2_000
"""At most: of train, class by class, and of the held-out images."""


class Outputs(NamedTuple):
    """Outputs of a model for some images, on the CPU; `features` are the head's input."""

    logits: Tensor
    features: Tensor
    labels: Tensor


def choose_score(run: Path, args: list[str]) -> dict[str, Any]:
    """Chooses the score of unknown images by classes left out, and writes it with what it compares
    images with to the run's trust.safetensors; returns what was chosen and what it gains.

    `args`: options of the data that replace the run's. UserError for a run that has not ended, that
    names no classes or several for an image, or has no images for this.
    """
    options = data_options(run, [*args, "--data.loading.cache=none"])
    if not any(arg.startswith("--data.root") for arg in args):
        check_given(recorded_options(run).get("own"), "images")
    data = ImageData(**options).unseen_by(known_by(run, before=True))
    with finished_run(run) as summary:
        classifier, before = load(run), Trust.read(run / "model") or Trust()
        if classifier.multilabel:
            raise UserError(
                f"{run} has several labels per image: --unknown compares the energy of its logits "
                "already, and there is no other score to choose"
            )
        classifier.to("cuda" if torch.cuda.is_available() else "cpu")
        frozen = not args and _is_frozen(summary, before)
        train, held_out, where = _parts(run, data, classifier, halves=frozen)
        known = train.features, train.labels
        choice = choose(known, (held_out.features, held_out.labels), data.seed)
        references = References.of(*known, data.seed)
        usual = all_scores(held_out.logits, held_out.features, references)
        if frozen and before.usual is not None:
            usual["energy"] = _as_spread(usual["energy"], before.usual[0])
        facts = {"unknown": choice.score, "usual": torch.stack([*usual.values()])}
        replace(before, **facts, **vars(references)).write(run / "model")
    shares = None  # of images that the head was fitted to, of which it names more rightly
    if not frozen:
        wrong = held_out.logits.argmax(1) != held_out.labels
        shares = accuracies(unlikeness(usual, usual, choice.score), wrong)
    return {
        **vars(choice),
        "train_images": len(train.labels),
        "images": len(held_out.labels),
        "measured_on": where,
        "accuracies": shares,
        "file": str(run / "model" / TRUST),
    }


def _is_frozen(summary: dict[str, Any], before: Trust) -> bool:
    """A head on features that were not trained has been measured without val."""
    splits = summary.get("splits") or {}
    return before.images > 0 and summary["steps"] == 0 and "val" not in splits


def _as_spread(energies: Tensor, held_out: Tensor) -> Tensor:
    """The energies (n,) in their order, with the values of `held_out` (m,).

    A head gives lower ones to images that it was fitted to than to others like them; `held_out`
    are by heads that were fitted without their image.
    """
    ranks = energies.argsort(stable=True).argsort()
    places = (2 * ranks + 1) * len(held_out) // (2 * len(energies))
    return held_out.sort().values[places]


def _parts(
    run: Path, data: ImageData, classifier: Classifier, *, halves: bool
) -> tuple[Outputs, Outputs, str]:
    """Outputs of train and of held-out images, and which these are: val, or half of train.

    UserError without val, and for images of other classes.
    """
    where = data.root or data.dataset
    if data.multilabel:
        raise UserError(f"{where} has several labels per image, and {run} names one; give others")
    if strange := [name for name in data.classes if name not in classifier.classes]:
        raise UserError(
            f"{where} has classes that {run} does not know ({some_of(strange)}); give images of "
            "its classes: --data FOLDER"
        )
    labels = torch.from_numpy(data.image_set("train").labels)
    drawn = class_by_class(labels, data.seed).tolist()
    if halves:
        both = _outputs(classifier, data, "train", drawn[: 2 * TRAIN])
        half = len(both.labels) // 2
        train, held_out = [part[:half] for part in both], [part[half:] for part in both]
        return Outputs(*train), Outputs(*held_out), "training images"
    if data.splits.val is None:
        raise UserError(
            f"{where} has no images that were held out as val; give some, in train/ and val/ of a "
            "folder: --data FOLDER"
        )
    note_seen(run, data.splits.val, "val")
    train = _outputs(classifier, data, "train", drawn[:TRAIN])
    return train, _outputs(classifier, data, "val", IMAGES), "validation images"


def _outputs(
    classifier: Classifier, data: ImageData, split: SplitName, limit: int | list[int]
) -> Outputs:
    """`limit`: at most so many images, or their positions."""
    most = limit if isinstance(limit, int) else len(limit)
    classes = torch.tensor([classifier.classes.index(name) for name in data.classes])
    rows = []
    with Meter(f"outputs for {split}", min(most, data.expected_images(split)), "img") as meter:
        for pixels, labels, _ in data.evaluation_loader(split, limit=limit):
            meter.advance(len(pixels))
            if not len(pixels):
                continue
            logits, features = classifier.outputs(pixels, features=True)
            classifier.activated(logits)  # UserError for what is not finite
            assert features is not None
            rows.append((logits.cpu(), features.cpu(), classes[labels]))
    if not rows:
        raise UserError(f"none of the images of {split} could be read")
    return Outputs(*map(torch.cat, zip(*rows, strict=True)))
