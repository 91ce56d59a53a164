"""Autoregressive: each patch is predicted from those before it, in raster order (AIM).

"Scalable Pre-training of Large Autoregressive Image Models" (arXiv:2401.08541), section 3.
Shapes: b batch, n patches, m = n - 1 next ones, d width, o pixels of a patch (RGB).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import NOT_NEGATIVE, UserError, check_range
from vit.extensions.pretraining.masking import Corruption, rows
from vit.extensions.pretraining.patch_prediction import (
    Grid,
    PatchPrediction,
    fix_positions,
    sines,
)
from vit.extensions.pretraining.targets import Pixels
from vit.models.backbone import run
from vit.models.config import ViTConfig
from vit.models.encoder import Mlp
from vit.models.initialization import mlp_
from vit.shapes import Float, Int
from vit.training.counted_data import Batch


class Autoregressive(PatchPrediction):
    """Trains an encoder to predict the next patch from those up to here.

    The first patches of an image, its prefix, see each other both ways and are not predicted; their
    number, 1 to n - 1, is drawn for each image. Fine-tuning and evaluation have no mask.

    Args:
        name: Model name, a ViT; PatchPrediction has the other options.
        prefix: False takes a prefix of one patch, which is plain causal attention.
        head_width: Size of the tokens in the head's MLPs, which are four times as wide inside.
        head_depth: Its MLPs; each patch passes them for itself.
        norm_pix: The pixels of a patch are predicted less their mean, over their deviation.
    """

    caption = (
        "the image; its prefix; every later patch as it was predicted from the true patches before "
        "it{note}; the true ones."
    )

    def __init__(
        self,
        name: str | None = None,
        *,
        prefix: bool = True,
        head_width: int = 2048,
        head_depth: int = 12,
        norm_pix: bool = True,
        **shared: Any,
    ) -> None:
        check_range("head_depth", head_depth, NOT_NEGATIVE)
        if head_width < 8 or head_width % 4:
            raise UserError(f"head_width={head_width} must be a multiple of 4, from 8 on")
        super().__init__(name, predicted=Pixels(norm_pix), **shared)
        self.prefix = prefix
        self._check_encoder()
        fix_positions(self.model, fresh=self.load_report is None)
        self.head = Head(self.model.config, head_width, head_depth)

    def _check_encoder(self) -> None:
        """UserError for tokens beside the patches, and for parts that no mask hides."""
        if self.model.num_prefix_tokens:
            raise UserError(
                "this task has patches alone: set model.architecture {class_token: false, "
                "pool: gap}, without registers and distillation token"
            )
        if any(getattr(module, "ignores_mask", False) for module in self.model.modules()):
            raise UserError(
                "this task hides later patches, and some parts would still see them: leave out "
                "model.architecture.variant.mixer, but softmax, and experts with chosen above 1"
            )

    def draw(self, uniforms: Float[Tensor, "b 1 n"]) -> Corruption:
        """Patches after the prefix; in their places is the first one after it again, so
        that images have equally many."""
        n = uniforms.shape[-1]
        sizes = 1 + (uniforms[:, 0, :1] * (n - 1) * self.prefix).long()
        chosen = torch.arange(1, n).maximum(sizes)
        return Corruption(chosen=chosen, seen=chosen[:, :0], source=chosen, masked=chosen > 0)

    def predict(self, patches: Tensor, grid: Grid, hidden: Corruption) -> Tensor:
        """Predicted pixels of the chosen patches, each by the output of the patch before it."""
        encoder = self.model
        mask = prefix_mask(hidden.chosen[:, 0], patches.shape[1])
        tokens = encoder.fc_norm(encoder.encode(patches, grid, bias=mask))
        return self.head(tokens, hidden.chosen - 1, encoder.activation_checkpointing)

    def scored(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> tuple[Tensor, Tensor]:
        """Predictions and targets of each chosen patch, once."""
        once = corruption.chosen.diff(append=1 + corruption.chosen[:, -1:]) > 0
        predicted, targets = super().scored(images, corruption)
        return predicted[once][None], targets[once][None]

    def training_loss(self, batch: Batch) -> Tensor:
        """Mean squared error, over the expected number of predicted patches in place of their
        number, so that a patch counts the same on any number of processes."""
        corruption = self.corruption(batch[0])
        predicted, targets = self.scored(batch[0], corruption)
        b, m = corruption.chosen.shape
        expected = b * ((m + 1) / 2 if self.prefix else m)
        return self.target.loss(predicted, targets) * (predicted.shape[1] / expected)


class Head(nn.Module):
    """Residual MLPs after fixed positions, from the encoder's tokens to pixels of next patches
    (section 3.2), patch by patch."""

    positions: Tensor

    def __init__(self, encoder: ViTConfig, width: int, depth: int) -> None:
        super().__init__()
        self.register_buffer("positions", sines(encoder, width, 0), persistent=False)
        self.embed = nn.Linear(encoder.width, width)
        mlps = [Mlp(width, 4 * width, encoder.activation) for _ in range(depth)]
        norms = [nn.LayerNorm(width, encoder.layer_norm_eps) for _ in range(depth + 1)]
        self.mlps, self.norms = nn.ModuleList(mlps), nn.ModuleList(norms)
        self.predictor = nn.Linear(width, 3 * encoder.patch_size**2)
        for first, second in ((self.embed, self.predictor), *((m.fc1, m.fc2) for m in mlps)):
            mlp_(first, second)

    def forward(
        self, tokens: Float[Tensor, "b n d"], places: Int[Tensor, "b m"], recompute: bool
    ) -> Float[Tensor, "b m o"]:
        """Pixels, from the tokens at `places`. `recompute`: of MLPs, in the backward pass."""
        x = rows(self.embed(tokens) + self.positions.to(tokens.dtype), places)
        for norm, mlp in zip(self.norms, self.mlps, strict=False):
            x = x + run(mlp, recompute, norm(x))
        return self.predictor(self.norms[-1](x))


def prefix_mask(sizes: Int[Tensor, " b"], n: int) -> Float[Tensor, "b 1 n n"]:
    """0 where a query (third index) sees a key, else -inf: the keys up to itself, or the prefix."""
    at = torch.arange(n, device=sizes.device)
    hidden = at > at.maximum(sizes[:, None] - 1)[..., None]
    return torch.where(hidden, -math.inf, 0.0)[:, None]
