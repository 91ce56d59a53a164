"""Objective: what an encoder learns without labels, and the targets, pixels or colours.

Shapes: b batch, h w pixels, n patches, m predicted patches an image, d width, o answers a patch.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.pretraining.masking import (
    NUM_COLORS,
    Corruption,
    Scale,
    color_classes,
    color_pixels,
    from_patches,
    patch_pixels,
    to_bytes,
)
from vit.models.config import ViTConfig
from vit.models.embedding import sincos2d
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float, Int

Pair = tuple[Tensor, Tensor]
Layers = dict[str, nn.Module | nn.Parameter]
Grid = tuple[int, int]

EPSILON = 1e-6
"""Added to the variance of a patch's pixels."""


@dataclass(frozen=True)
class Pixels:
    """All pixels of a patch, by least squares."""

    normalised: bool
    """Less the mean of the patch's pixels, over their deviation."""
    num_classes = 0

    @property
    def note(self) -> str:
        """What pictures of predictions take from the true pixels."""
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


@dataclass(frozen=True)
class Objective(ABC):
    """What is hidden of an image, what is predicted in its place, and how.

    It has no weights: those beside the encoder's are the module's, which a checkpoint is of.
    """

    target: Pixels | Colors
    overlapping = False
    """Patches may overlap, as those of a hybrid do."""
    numbers = 1
    """Uniform random numbers for each patch."""
    caption: ClassVar[str]
    """What pictures show from left to right; {note} is the target's."""

    @abstractmethod
    def layers(self, encoder: VisionTransformer, *, fresh: bool) -> Layers:
        """Layers beside the encoder's, by their names in a checkpoint.

        It may fix weights of the encoder, which are random if `fresh`. UserError for an encoder
        that cannot learn this.
        """

    @abstractmethod
    def draw(self, uniforms: Float[Tensor, "b numbers n"]) -> Corruption:
        """What the images are corrupted by, from numbers in [0, 1)."""

    @abstractmethod
    def predict(self, module: Any, patches: Tensor, grid: Grid, hidden: Corruption) -> Tensor:
        """Predictions `b m o` at the corrupted ones of the patches `b n d`. `module` has the
        encoder as `model`, and the `layers` by their names."""

    def pairs(self, predicted: Tensor, targets: Tensor, corruption: Corruption) -> Pair:
        """The predictions and targets of which the loss is taken."""
        return predicted, targets

    def loss(self, predicted: Tensor, targets: Tensor, corruption: Corruption) -> Tensor:
        """Loss of the `pairs` of a training batch."""
        return self.target.loss(predicted, targets)


def mask_token(width: int) -> nn.Parameter:
    token = nn.Parameter(torch.zeros(width))
    nn.init.normal_(token, std=0.02)
    return token


def fix_positions(encoder: VisionTransformer, *, fresh: bool) -> None:
    """Fixes a learned table of positions, as MAE's official code does: at sines and cosines if
    `fresh`, else as it is. Fine-tuning trains it."""
    if encoder.pos_embed is not None:
        table, config = encoder.pos_embed.requires_grad_(False), encoder.config
        if fresh:
            table.copy_(sines(config, config.width, config.num_position_slots))


def moments(parts: Float[Tensor, "b n o"]) -> tuple[Tensor, Tensor]:
    """Mean of a patch's pixels, and the root of their unbiased variance plus EPSILON, `b n 1`."""
    variance, mean = torch.var_mean(parts, dim=-1, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def sines(config: ViTConfig, width: int, slots: int) -> Float[Tensor, "1 slots_n d"]:
    """MAE's fixed positions (its official code), zero for `slots` tokens before the patches.

    Its frequencies are 10,000^(-4i/width); those of `sincos2d` have width / 4 - 1 below the i.
    """
    return F.pad(sincos2d(config.grid, width, 10_000 ** (1 - 4 / width)), (0, 0, slots, 0))
