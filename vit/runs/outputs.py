"""Outputs of a trained model for images of its run.

Shapes: n images, k classes, d features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from vit import signals
from vit.console import Meter
from vit.data.module import ImageData
from vit.data.sources import SplitName
from vit.inference.classifier import Classifier
from vit.training.callbacks.linear_probe import from_all_processes

MOST = 10_000
"""Images at most; fewer of many classes."""
MOST_NUMBERS = 2**24
"""Logits at most."""


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
    rows = []
    with (
        Meter(f"outputs for {split}", most / trainer.world_size, "img") as meter,
        trainer.precision_plugin.forward_context(),
    ):
        for pixels, labels, _ in data.evaluation_loader(split, limit=shown):
            if signals.received():  # the run ends before anything is made of a part
                break
            meter.advance(len(pixels))
            if len(pixels):
                logits, features = classifier.outputs(pixels, features=True)
                assert features is not None
                rows.append((logits.cpu(), features.cpu(), labels))
    rows = [row for share in from_all_processes(rows) for row in share]
    return Outputs(*map(torch.cat, zip(*rows, strict=True))) if rows else None
