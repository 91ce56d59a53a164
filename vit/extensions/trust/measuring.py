"""What the answers of a finished run are worth, measured on the images that it has.

Shapes: n images, k classes.
"""

from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from vit import signals
from vit.confidence import fit_temperature, set_scores
from vit.console import Meter, note, say
from vit.data.module import ImageData
from vit.extensions.trust.rejection import accuracies
from vit.extensions.trust.trust import Trust
from vit.extensions.trust.unknown import energy
from vit.inference.classifier import Classifier
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.parts import from_all_processes

MOST = 10_000
"""Images of val at most; fewer of many classes."""
MOST_NUMBERS = 2**24
"""Logits at most."""


def outputs_of_val(trainer: Trainer, model: Any, data: ImageData) -> list[tuple[Tensor, Tensor]]:
    """float32 logits `n k` and labels, classes `n` or zeros and ones `n k`, of images of val.

    At most MOST, drawn by the seed. Every process must call it, and gets one pair of all of them on
    the CPU; none if no image could be read.
    """
    most = min(MOST, data.expected_images("val"), MOST_NUMBERS // len(data.classes))
    model.to(trainer.strategy.root_device)  # a fit that has ended leaves it on the CPU
    classifier = Classifier(model.model, data.classes, data.preprocess)
    together = hasattr(model.model, "unshard")  # with fsdp2 processes compute batch by batch
    rows = []
    bar = trainer.progress_bar_callback is not None
    with Meter("outputs for val", most / trainer.world_size, "img", shown=bar) as meter:
        for pixels, labels, _ in data.evaluation_loader("val", limit=most):
            if signals.received() and not together:  # the run ends before a part is used
                break
            meter.advance(len(pixels))
            if len(pixels) or together:
                with trainer.precision_plugin.forward_context():  # images are read in float32
                    logits, _ = classifier.outputs(pixels)
                rows.append((logits.cpu(), labels.cpu()))
    rows = [row for share in from_all_processes(rows) for row in share]
    if not rows:
        return []
    logits, labels = map(torch.cat, zip(*rows, strict=True))
    return [(logits, labels)]


def measure(
    trainer: Trainer, model: Any, data: ImageData, checkpoint: dict[str, Any]
) -> tuple[Trust, dict[str, Any]] | None:
    """What says how far a model's answers are to be trusted, and its figures for summary.json; sets
    the model's temperature. None without images that the weights were not trained on.

    `checkpoint`: the description of the weights. Every process must call it.
    """
    start = model.load_report
    if data.splits.val is not None and trainer.limit_val_batches != 0:
        pairs, where = outputs_of_val(trainer, model, data), "validation images"
        if "score" in checkpoint or "val_losses" in checkpoint.get("by_size", {}):
            where += ", which also chose the weights"
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
    logits, labels = (tensor.cpu() for tensor in pairs[0])
    temperature = fit_temperature(logits, labels)
    model.test_metrics.temperature = None if temperature == 1 else temperature
    say(f"temperature {temperature:.3g}, fitted to {len(labels):,} {where}")
    facts = {"temperature": temperature, "images": len(labels), "measured_on": where}
    energies, scores = energy(logits, multilabel=data.multilabel), None
    first = logits.argmax(1)
    wrong = labels.gather(1, first[:, None])[:, 0] == 0 if data.multilabel else first != labels
    unknown = {"images": len(labels), "accuracies": accuracies(energies, wrong)}
    if not data.multilabel:
        of_classes = set_scores((logits.double() / temperature).softmax(1))
        scores = of_classes.gather(1, labels[:, None])[:, 0].sort().values
    trust = Trust(**facts, scores=scores, usual=energies.sort().values[None])
    return trust, {"confidence": {**facts, "sets": []}, "unknown": unknown}
