"""MaskedPatchPrediction: the paper's self-supervised pre-training (ViT, appendix B.1.2).

The encoder predicts the colours of corrupted patches from the others. Shapes: b batch, h w pixels,
n patches, m corrupted patches an image, d width, o answers a patch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import check_range
from vit.extensions.pretraining.masking import (
    DRAWS,
    FRACTION,
    NUM_COLORS,
    Corruption,
    Target,
    color_classes,
    color_pixels,
    draw_corruption,
    from_patches,
    num_outputs,
    patch_pixels,
    rows,
    to_bytes,
)
from vit.extensions.pretraining.patch_prediction import PatchPrediction
from vit.shapes import Float, Int


class MaskedPatchPrediction(PatchPrediction):
    """Trains an encoder to predict the colours of corrupted patches; it needs no labels.

    Args:
        name: Model name as `vit models` lists it, a ViT or hybrid; PatchPrediction has the other
            options.
        target: What is predicted of a corrupted patch. mean_color: the upper three bits of its mean
            red, green and blue, one of 512 classes. colors_4x4: the same for each pixel of the
            patch downsized to 4 x 4, sixteen answers. pixels: all its pixels as normalised, by
            least squares.
        fraction: Share of the patches of each image that is corrupted, in (0, 1); of these 80 %
            become [mask], 10 % another patch of the image, 10 % stay.
    """

    numbers = DRAWS

    def __init__(
        self,
        name: str | None = None,
        *,
        target: Target = "mean_color",
        fraction: float = 0.5,
        **shared: Any,
    ) -> None:
        check_range("fraction", fraction, FRACTION)
        super().__init__(name, **shared)
        self.target: Target = target
        self.fraction = fraction
        patch_size, width = self.model.patch_size, self.model.config.width
        self.mask_token = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.mask_token, std=0.02)
        outputs = num_outputs(target, patch_size)
        self.predictor = nn.Linear(width, outputs)
        nn.init.zeros_(self.predictor.weight)
        nn.init.zeros_(self.predictor.bias)
        classes = 0 if target == "pixels" else NUM_COLORS
        self._predicts(outputs // max(classes, 1), classes)

    def drawn(self, uniforms: Float[Tensor, "b 3 n"]) -> Corruption:
        """Equally many patches of every image, and what takes their places."""
        return draw_corruption(uniforms, self.fraction)

    def forward(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> Float[Tensor, "b m o"]:
        """Predictions at the corrupted patches: logits, 512 an answer, or pixels."""
        # With precision bf16-true, images still come in float32.
        patches, grid = self.model.embed(images.to(self.dtype))
        tokens = self.model.encode(corruption(patches, self.mask_token), grid)
        # Where the final norm follows the pooling, it is here; elsewhere fc_norm does nothing.
        features = self.model.fc_norm(
            rows(tokens[:, self.model.num_prefix_tokens :], corruption.chosen)
        )
        return self.predictor(features).float()

    def targets(self, images: Float[Tensor, "b 3 h w"]) -> Tensor:
        """Targets of all patches: colour classes `b n o`, or pixels `b n 3*p*p`."""
        patch_size = self.model.patch_size
        if self.target == "pixels":
            return patch_pixels(images.float(), patch_size)
        side = 4 if self.target == "colors_4x4" else 1
        return color_classes(to_bytes(images, self.mean, self.std), patch_size, side)

    def loss(self, predicted: Float[Tensor, "b m o"], targets: Tensor) -> Float[Tensor, ""]:
        """Mean over the corrupted patches of cross-entropy, in nats an answer, or squared error."""
        if self.target == "pixels":
            return super().loss(predicted, targets)
        return F.cross_entropy(predicted.reshape(-1, NUM_COLORS), targets.flatten())

    def answers(self, predicted: Float[Tensor, "b m o"]) -> Tensor:
        """The most likely classes, or pixels."""
        if self.target == "pixels":
            return predicted
        return predicted.unflatten(-1, (-1, NUM_COLORS)).argmax(-1)

    def shown(self, targets: Tensor, images: Float[Tensor, "b 3 h w"]) -> Int[Tensor, "b 3 h w"]:
        """Pixels from 0 to 255 of what the targets of these images' patches look like."""
        if self.target == "pixels":
            return super().shown(targets, images)
        parts = color_pixels(targets, self.model.patch_size)
        return from_patches(parts, (images.shape[-2], images.shape[-1]))
