"""Targets of the predictions: pixels or colours of patches.

Shapes: b batch, n patches, m predicted patches an image, o answers a patch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.errors import UserError
from vit.extensions.pretraining.masking import (
    NUM_COLORS,
    Scale,
    color_classes,
    color_pixels,
    from_patches,
    patch_pixels,
    to_bytes,
)
from vit.shapes import Float, Int

EPSILON = 1e-6
"""Added to the variance of a patch's pixels."""


@dataclass(frozen=True)
class Pixels:
    """Pixels of a patch, by least squares."""

    normalised: bool
    """Less the mean of the patch's pixels, over their deviation."""
    num_classes = 0

    @property
    def note(self) -> str:
        """Caption: values of the true pixels that pictures of predictions use."""
        return ", with the true mean and deviation of its pixels" if self.normalised else ""

    def num_answers(self, patch_size: int) -> int:
        return 3 * patch_size**2

    def targets(self, images: Tensor, patch_size: int, scale: Scale) -> Float[Tensor, "b n o"]:
        """The pixels of all patches; with `normalised` of mean 0 and variance 1 in each."""
        parts = patch_pixels(images, patch_size)
        if not self.normalised:
            return parts
        mean, deviation = moments(parts)
        return (parts - mean) / deviation

    def loss(self, predicted: Float[Tensor, "b m o"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean squared error."""
        return F.mse_loss(predicted, targets)

    def shown(self, targets: Tensor, images: Tensor, patch_size: int, scale: Scale) -> Tensor:
        """Pixels from 0 to 255; normalised ones get mean and deviation of these images' patches."""
        if self.normalised:
            mean, deviation = moments(patch_pixels(images, patch_size))
            targets = targets * deviation + mean
        pixels = from_patches(targets, (images.shape[-2], images.shape[-1]))
        return to_bytes(pixels, scale)


@dataclass(frozen=True)
class Colors:
    """Classes of colours of a patch that is downsized to `side` x `side`, by cross-entropy."""

    side: int
    num_classes = NUM_COLORS
    note = ""

    def num_answers(self, patch_size: int) -> int:
        """Classes of a patch. UserError if `side` x `side` pixels do not fit."""
        if patch_size % self.side:
            raise UserError(
                f"target=colors_{self.side}x{self.side} needs a patch_size that is a multiple of "
                f"{self.side}, not {patch_size}; choose target=mean_color"
            )
        return self.side**2

    def targets(self, images: Tensor, patch_size: int, scale: Scale) -> Int[Tensor, "b n o"]:
        """Classes of the colours of all patches."""
        return color_classes(to_bytes(images, scale), patch_size, self.side)

    def loss(self, predicted: Float[Tensor, "b m o"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean of the cross-entropy, in nats an answer."""
        return F.cross_entropy(predicted.reshape(-1, NUM_COLORS), targets.flatten())

    def shown(self, targets: Tensor, images: Tensor, patch_size: int, scale: Scale) -> Tensor:
        """Pixels from 0 to 255 in the middle of each class's range."""
        parts = color_pixels(targets, patch_size)
        return from_patches(parts, (images.shape[-2], images.shape[-1]))


def moments(parts: Float[Tensor, "b n o"]) -> tuple[Tensor, Tensor]:
    """Mean of a patch's pixels, and the root of their unbiased variance plus EPSILON, `b n 1`."""
    variance, mean = torch.var_mean(parts, dim=-1, keepdim=True)
    return mean, (variance + EPSILON).sqrt()
