"""What tells images of unknown classes, and what refusing them gains on the scored split."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from vit.console import is_first_process, say
from vit.data.module import ImageData
from vit.data.sampler import class_by_class, evaluated
from vit.evaluation.rejection import Choice, accuracies, choose
from vit.inference.unknown import References, all_scores, unlikeness
from vit.runs.outputs import Outputs, outputs_of

TRAIN, IMAGES = 1_000, 2_000
"""Images at most: of train, class by class; of val and of the scored split."""
NO_CHOICE = "no classes could be left out to choose a score"


def measure_unknown(
    trainer: Trainer, model: Any, data: ImageData, val: Outputs | None, split: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of Trust, and for the report the choice and what it gains on `split`.

    `val` is None for a head on features that were not trained: half of the images drawn of train
    stand in for it. Every process must call it; both are empty where images cannot be read.
    """
    train, val, scored = _outputs(trainer, model, data, val, split)
    if not is_first_process() or val is None or (train is None and not data.multilabel):
        return {}, {}
    val = val.at(evaluated(len(val.labels), IMAGES, data.seed))
    choice, references = Choice("energy", {}, 0), None
    if train is not None:
        known = train.features, train.labels
        choice = choose(known, (val.features, val.labels), data.seed)
        references = References.of(*known, data.seed)
    usual = all_scores(val.logits, val.features, references)
    fields = {
        "unknown": choice.score,
        "usual": torch.stack(list(usual.values())),
        **({} if references is None else vars(references)),
    }
    why = f"best with {choice.groups} groups of classes left out"
    say(f"score of unknown images: {choice.score}, {why if choice.groups else NO_CHOICE}")
    if scored is None:
        return fields, {}
    found = all_scores(scored.logits, scored.features, references)
    order = unlikeness(found, usual, choice.score)
    gain = {"images": len(order), "accuracies": accuracies(order, scored.wrong())}
    return fields, vars(choice) | gain


def _outputs(
    trainer: Trainer, model: Any, data: ImageData, val: Outputs | None, split: str
) -> tuple[Outputs | None, Outputs | None, Outputs | None]:
    """Of train, with one label per image; of val; and of the scored split, if there is one."""
    scored = val
    if split not in ("val", "none"):
        scored = outputs_of(trainer, model, data, split, IMAGES)  # pyright: ignore[reportArgumentType]
    if data.multilabel:
        return None, val or outputs_of(trainer, model, data, "train", TRAIN), scored
    labels = torch.from_numpy(data.image_set("train").labels)
    drawn = class_by_class(labels, data.seed)[: 2 * TRAIN if val is None else TRAIN]
    train = outputs_of(trainer, model, data, "train", drawn.tolist())
    if train is not None and val is None:
        half = len(train.labels) // 2
        return train.at(range(half)), train.at(range(half, len(train.labels))), scored
    return train, val, scored
