"""Answers that are the mean over a picture and its mirror image: `vit classify --tta`.

Shapes: b images, c channels, h w pixels, k classes.
"""

import math
from dataclasses import KW_ONLY, dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.errors import UserError
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier

MEASURED = ("coverage", "unknown")
"""Answers by measurements of the outputs for the picture alone."""


@dataclass(eq=False, repr=False)
class Mirrored(Classifier):
    """A classifier whose probabilities are the mean of those of an image and of its mirror."""

    _: KW_ONLY
    plain: Classifier

    def outputs(self, pixels: Tensor, *, features: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits `b k` that `activated` turns into the mean; features of the image itself."""
        logits, vectors = self.plain.outputs(pixels, features=features)
        both = torch.stack([logits, self.plain.outputs(pixels.flip(-1))[0]]) / self.temperature
        if self.multilabel:
            mean = _log_mean(F.logsigmoid(both)) - _log_mean(F.logsigmoid(-both))
        else:
            mean = _log_mean(both.log_softmax(-1))
        return mean * self.temperature, vectors

    def to(self, device: str | torch.device) -> "Mirrored":
        """Moves the model to a device. UserError as of the plain classifier."""
        self.plain.to(device)
        return self


def _log_mean(logarithms: Tensor) -> Tensor:
    """The logarithm of the mean over the first axis."""
    return logarithms.logsumexp(0) - math.log(len(logarithms))


def mirrored(classifier: Classifier, asked: PredictOptions) -> Classifier:
    """The row of the table `views` for --tta. UserError beside answers that were measured on
    single pictures."""
    for name in MEASURED:
        if (number := asked.numbers.get(name)) is not None:
            raise UserError(
                f"--tta changes the probabilities on which --{name} {number:g} was measured; leave "
                "one of them out"
            )
    values = {field.name: getattr(classifier, field.name) for field in fields(Classifier)}
    return Mirrored(**values, plain=classifier)
