"""Masked patches: the paper's self-supervised pre-training (ViT, appendix B.1.2).

The encoder predicts the colours of corrupted patches from the others. Shapes: b batch, n patches,
m corrupted patches an image, d width, o answers a patch.
"""

from typing import Any, Literal

from torch import Tensor, nn

from vit.errors import check_range
from vit.extensions.pretraining.masking import DRAWS, FRACTION, Corruption, draw_corruption, rows
from vit.extensions.pretraining.patch_prediction import Grid, PatchPrediction, mask_token
from vit.extensions.pretraining.targets import Colors, Pixels
from vit.shapes import Float

TARGETS = {"mean_color": Colors(1), "colors_4x4": Colors(4), "pixels": Pixels(normalised=False)}


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

    overlapping = True
    numbers = DRAWS
    caption = (
        "the image; the input of the encoder, masked patches in gray; the colours that it "
        "predicted for the corrupted patches; the true ones."
    )

    def __init__(
        self,
        name: str | None = None,
        *,
        target: Literal["mean_color", "colors_4x4", "pixels"] = "mean_color",
        fraction: float = 0.5,
        **shared: Any,
    ) -> None:
        check_range("fraction", fraction, FRACTION)
        super().__init__(name, predicted=TARGETS[target], **shared)
        self.fraction, width = fraction, self.model.config.width
        self.mask_token = mask_token(width)
        answers = self.target.num_answers(self.model.patch_size)
        self.predictor = nn.Linear(width, answers * max(self.target.num_classes, 1))
        nn.init.zeros_(self.predictor.weight)
        nn.init.zeros_(self.predictor.bias)

    def draw(self, uniforms: Float[Tensor, "b 3 n"]) -> Corruption:
        """Equally many patches of every image, and what takes their places."""
        return draw_corruption(uniforms, self.fraction)

    def predict(self, patches: Tensor, grid: Grid, hidden: Corruption) -> Tensor:
        """Logits, 512 an answer, or pixels."""
        encoder = self.model
        tokens = encoder.encode(hidden(patches, self.mask_token), grid)
        # Where the final norm follows the pooling, it is here; elsewhere fc_norm does nothing.
        features = encoder.fc_norm(rows(tokens[:, encoder.num_prefix_tokens :], hidden.chosen))
        return self.predictor(features)
