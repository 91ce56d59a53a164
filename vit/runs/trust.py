"""What the answers of a finished run are worth, measured on the images that it has.

Shapes: n images, k classes, d features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from vit import signals
from vit.confidence import fit_temperature, set_scores
from vit.console import Meter, is_first_process, note, say
from vit.data.module import ImageData
from vit.data.sampler import class_by_class, evaluated
from vit.data.sources import SplitName
from vit.evaluation.rejection import DEFAULT, Choice, accuracies, choose
from vit.inference.classifier import Classifier
from vit.inference.trust import Trust
from vit.inference.unknown import References, all_scores, unlikeness
from vit.training.callbacks.linear_probe import LinearProbe, from_all_processes

MOST = 10_000
"""Images of val at most; fewer of many classes."""
MOST_NUMBERS = 2**24
"""Logits at most."""
TRAIN, IMAGES = 1_000, 2_000
"""For unknown images, at most: of train, class by class; of val and of the scored split."""
NO_CHOICE = "no classes could be left out to choose a score"


@dataclass(frozen=True)
class Outputs:
    """Of a model for some images, on the CPU."""

    logits: Tensor
    """float32 `n k`."""
    features: Tensor
    """float32 `n d`, the head's input."""
    labels: Tensor
    """Classes `n`, or zeros and ones `n k`."""

    def at(self, rows: Sequence[int]) -> "Outputs":
        """Those of some of the images."""
        return Outputs(self.logits[rows], self.features[rows], self.labels[rows])

    def wrong(self) -> Tensor:
        """`n`, true where the most probable class is none of the image's."""
        first = self.logits.argmax(1)
        if self.labels.dim() == 1:
            return first != self.labels
        return self.labels.gather(1, first[:, None])[:, 0] == 0


def outputs_of(
    trainer: Trainer,
    model: Any,
    data: ImageData,
    split: SplitName,
    images: int | list[int] = MOST,
) -> Outputs | None:
    """The outputs for images of a split, as they are evaluated.

    `images`: at most so many, drawn by the seed, or their positions. Every process must call it,
    and gets all of them; None if no image could be read.
    """
    wanted = images if isinstance(images, int) else len(images)
    most = min(wanted, data.expected_images(split), MOST_NUMBERS // len(data.classes))
    shown = most if isinstance(images, int) else images[:most]
    model.to(trainer.strategy.root_device)  # a fit that has ended leaves it on the CPU
    classifier = Classifier(model.model, data.classes, data.preprocess)
    together = hasattr(model.model, "unshard")  # with fsdp2 processes compute batch by batch
    if together:
        model.model.unshard()  # what lies outside of its blocks
    rows = []
    bar = trainer.progress_bar_callback is not None
    title, total = f"outputs for {split}", most / trainer.world_size
    with Meter(title, total, "img", shown=bar) as meter:
        for pixels, labels, _ in data.evaluation_loader(split, limit=shown):
            if signals.received() and not together:  # the run ends before a part is used
                break
            meter.advance(len(pixels))
            if len(pixels) or together:
                with trainer.precision_plugin.forward_context():  # images are read in float32
                    logits, features = classifier.outputs(pixels, features=True)
                assert features is not None
                rows.append((logits.cpu(), features.cpu(), labels))
    if together:
        model.model.reshard()
    rows = [row for share in from_all_processes(rows) for row in share]
    return Outputs(*map(torch.cat, zip(*rows, strict=True))) if rows else None


def measure(trainer: Trainer, model: Any, data: ImageData, summary: dict[str, Any]) -> Trust | None:
    """Sets the model's temperature, and returns what else says how far its answers are to be
    trusted; None without images that the weights were not trained on.

    `summary`: of the run, with the description of the weights; "confidence" and "unknown" are added
    to it. Every process must call it.
    """
    checkpoint, outputs, start = summary["checkpoint"], None, model.load_report
    if data.splits.val is not None and trainer.limit_val_batches != 0:
        outputs, where = outputs_of(trainer, model, data, "val"), "validation images"
        if "score" in checkpoint or "val_losses" in checkpoint.get("by_size", {}):
            where += ", which also chose the weights"
        pairs = [] if outputs is None else [(outputs.logits, outputs.labels)]
    else:
        # Weights that name one of the classes may have been trained on these very images.
        unseen = start is not None and start.reinitialised and not start.kept
        probes = [c for c in trainer.callbacks if isinstance(c, LinearProbe) and c.alone and unseen]  # pyright: ignore
        heads = [probe.held_out for probe in probes]
        pairs = trainer.strategy.broadcast([pair for held_out in heads for pair in held_out])
        where = "training images, each by a head that was fitted without it"
    if not pairs:
        note(
            "no images to measure on: probabilities get no temperature, --coverage and --unknown "
            "need one with val (--data.splits.val_fraction 0.1)"
        )
        return None
    unknown, summary["unknown"] = _measure_unknown(trainer, model, data, outputs, summary["split"])
    logits, labels = (tensor.cpu() for tensor in pairs[0])
    temperature = fit_temperature(logits, labels)
    model.temperature = None if temperature == 1 else temperature
    say(f"temperature {temperature:.3g}, fitted to {len(labels):,} {where}")
    facts = {"temperature": temperature, "images": len(labels), "measured_on": where}
    summary["confidence"] = {**facts, "sets": []}
    scores = None
    if not data.multilabel:
        of_classes = set_scores((logits.double() / temperature).softmax(1))
        scores = of_classes.gather(1, labels[:, None])[:, 0].sort().values
    return Trust(**facts, scores=scores, **unknown)


def _measure_unknown(
    trainer: Trainer, model: Any, data: ImageData, val: Outputs | None, split: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of Trust, and for the report the choice and what it gains on `split`.

    `val` is None for a head on features that were not trained: half of the images drawn of train
    stand in for it. Every process must call it; both are empty where images cannot be read.
    """
    train, val, scored = _parts(trainer, model, data, val, split)
    if not is_first_process() or val is None or (train is None and not data.multilabel):
        return {}, {}
    val = val.at(evaluated(len(val.labels), IMAGES, data.seed))
    choice, references = Choice(DEFAULT, {}, 0), None
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


def _parts(
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
