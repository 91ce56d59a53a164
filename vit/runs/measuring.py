"""The confidence of a finished run: its temperature and sets, by one pass over held-out images.

Shapes: n images, k classes.
"""

import json
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from vit.confidence import TRUST, cut, energy, fit_temperature, set_scores
from vit.console import is_first_process, note, say
from vit.data.module import ImageData
from vit.runs.records import Record
from vit.runs.trainer import Module, callbacks_of
from vit.training.callbacks.linear_probe import LinearProbe
from vit.training.counted_data import logits_of
from vit.training.parts import Dividing, from_all_processes
from vit.weights.sealed import write_sealed
from vit.weights.weight_file import read_json

MOST, MOST_NUMBERS = 10_000, 2**24
"""Images of val at most, and logits."""
COVERAGES = (0.8, 0.9, 0.95)
"""For which a report counts sets."""

Pair = tuple[Tensor, Tensor]
"""float32 logits `n k`, and labels: classes `n`, or zeros and ones `n k`."""


def measure(
    trainer: Trainer, model: Module, data: ImageData, checkpoint: Record, run: Path
) -> tuple[Record, dict[float, float]]:
    """Sets the model's temperature, and writes trust.safetensors beside the weights of the run.

    Returns content of summary.json, and the cut of `set_scores` for each of COVERAGES that there
    are images for; both empty without images that the weights were not trained on. `checkpoint`:
    the description of the weights. Every process must call it.
    """
    pairs, where = _held_out(trainer, model, data, checkpoint)
    if not pairs:
        note(
            "no images to measure on: probabilities get no temperature, --coverage and --unknown "
            "need one with val (--data.splits.val_fraction 0.1)"
        )
        return {}, {}
    logits, labels = (tensor.cpu() for tensor in pairs[0])
    temperature, images = fit_temperature(logits, labels), len(labels)
    model.test_metrics.temperature = None if temperature == 1 else temperature
    say(f"temperature {temperature:.3g}, fitted to {images:,} {where}")
    facts = {"temperature": temperature, "images": images, "measured_on": where}
    first, energies = logits.argmax(1), energy(logits, multilabel=data.multilabel)
    wrong = labels.gather(1, first[:, None])[:, 0] == 0 if data.multilabel else first != labels
    tensors, cuts = {"usual": energies.sort().values[None]}, {}
    if not data.multilabel:
        of_classes = set_scores((logits.double() / temperature).softmax(1))
        tensors["scores"] = scores = of_classes.gather(1, labels[:, None])[:, 0].sort().values
        cuts = {c: cut(scores, c) for c in COVERAGES if images + 1 >= 1 / (1 - c) - 1e-9}
    if is_first_process():
        weights = read_json(run / "model/config.json")["sha256"]
        about = {**facts, "unknown": "energy", "weights": weights}
        write_sealed(run / "model" / TRUST, tensors, json.dumps(about))
    unknown = {"images": images, "accuracies": accuracies(energies, wrong)}
    return {"confidence": facts, "unknown": unknown}, cuts


def _held_out(
    trainer: Trainer, model: Module, data: ImageData, checkpoint: Record
) -> tuple[list[Pair], str]:
    """Outputs of images that the weights were not trained on, one pair or none, and which images
    they are."""
    if data.splits.val is not None and trainer.limit_val_batches != 0:
        where = "validation images"
        if "score" in checkpoint or "val_losses" in checkpoint.get("by_size", {}):
            where += ", which also chose the weights"
        return _outputs_of_val(trainer, model, data), where
    start = model.load_report
    # Weights that name one of the classes may have been trained on these very images.
    unseen = start is not None and start.reinitialised and not start.known_rows
    probes = [c for c in callbacks_of(trainer) if isinstance(c, LinearProbe) and c.alone and unseen]
    pairs = [pair for probe in probes for pair in probe.held_out]
    where = "training images, each by a head that was fitted without it"
    return trainer.strategy.broadcast(pairs), where


def _outputs_of_val(trainer: Trainer, model: Module, data: ImageData) -> list[Pair]:
    """Outputs of at most MOST images, drawn by the seed: those of all processes, on each of them,
    on the CPU; none if no image could be read."""
    most = min(MOST, data.expected_images("val"), MOST_NUMBERS // len(data.classes))
    model.to(trainer.strategy.root_device)  # a fit that has ended leaves it on the CPU
    ends = not isinstance(trainer.strategy, Dividing)  # its processes compute batch by batch
    outputs = logits_of(trainer, model.model, "val", most, until_signal=ends)
    rows = [(logits.cpu(), labels.cpu()) for logits, labels, _ in outputs]
    rows = [row for share in from_all_processes(rows) for row in share]
    return [(torch.cat([x for x, _ in rows]), torch.cat([y for _, y in rows]))] if rows else []


def accuracies(scores: Tensor, wrong: Tensor) -> list[float]:
    """Accuracy of the 1 %, 2 %, ... 100 % of the images with the lowest `scores` (n,)."""
    ordered = wrong[scores.argsort(stable=True)].double()
    counts = (torch.arange(1, 101) * len(scores) / 100).ceil().long()
    shares: list[float] = (1 - ordered.cumsum(0)[counts - 1] / counts).tolist()  # pyright: ignore
    return shares
