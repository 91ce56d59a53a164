"""PixelPrediction: what masked autoencoders and autoregressive models share.

Shapes: b batch, h w pixels, n patches, d width, o = 3 * side * side pixels of a patch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vit.extensions.pretraining.masking import patch_pixels
from vit.extensions.pretraining.patch_prediction import PatchPrediction
from vit.models.config import ViTConfig
from vit.models.embedding import sincos2d
from vit.shapes import Float, Int

EPSILON = 1e-6
"""Added to the variance of a patch's pixels."""


class PixelPrediction(PatchPrediction):
    """Trains an encoder to predict the pixels of patches by least squares.

    A learned table of positions is fixed here, as in MAE's official code: at sines and cosines, or
    as `pretrained` has it. Fine-tuning trains it.

    Args:
        name: Model name as `vit models` lists it, a ViT; PatchPrediction has the other options.
        norm_pix: The pixels of a patch are predicted less their mean, over their deviation.
    """

    kinds = "a ViT, not a hybrid, whose patches overlap, nor a ResNet, which has none"
    overlapping = False
    numbers = 1

    def __init__(self, name: str | None = None, *, norm_pix: bool = True, **shared: Any) -> None:
        super().__init__(name, **shared)
        self.norm_pix, config = norm_pix, self.model.config
        if self.model.pos_embed is not None:
            table = self.model.pos_embed.requires_grad_(False)
            if self.load_report is None:
                table.copy_(sines(config, config.width, config.num_position_slots))

    @property
    def given(self) -> str:
        """What the pictures take from the true pixels."""
        return ", with the true mean and deviation of its pixels" if self.norm_pix else ""

    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b n o"]:
        """The pixels of all patches; with `norm_pix` of mean 0 and variance 1 in each."""
        parts = patch_pixels(images, self.model.patch_size)
        if not self.norm_pix:
            return parts
        mean, deviation = moments(parts)
        return (parts - mean) / deviation

    def shown(self, targets: Tensor, images: Float[Tensor, "b 3 h w"]) -> Int[Tensor, "b 3 h w"]:
        """Pixels from 0 to 255; normalised ones get mean and deviation of these images' patches."""
        if self.norm_pix:
            mean, deviation = moments(patch_pixels(images, self.model.patch_size))
            targets = targets * deviation + mean
        return super().shown(targets, images)


def moments(
    parts: Float[Tensor, "b n o"],
) -> tuple[Float[Tensor, "b n 1"], Float[Tensor, "b n 1"]]:
    """Mean of a patch's pixels, and the root of their unbiased variance plus EPSILON."""
    variance, mean = torch.var_mean(parts, dim=-1, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def sines(config: ViTConfig, width: int, slots: int) -> Float[Tensor, "1 slots_n d"]:
    """MAE's fixed positions (its official code), zero for `slots` tokens before the patches.

    Its frequencies are 10,000^(-4i/width); those of `sincos2d` have width / 4 - 1 below the i.
    """
    return F.pad(sincos2d(config.grid, width, 10_000 ** (1 - 4 / width)), (0, 0, slots, 0))
