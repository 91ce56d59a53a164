"""Masked autoencoders: most patches are left out, and a small decoder paints them (MAE).

"Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377); facebookresearch/mae,
models_mae.py. Shapes: b batch, n patches, m masked patches an image, k kept ones, p prefix tokens,
d width of the decoder, o = 3 * side * side pixels of a patch.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import UserError, check_range
from vit.extensions.pretraining.masking import FRACTION, Corruption, draw_masks, rows
from vit.extensions.pretraining.patch_prediction import (
    Grid,
    PatchPrediction,
    fix_positions,
    mask_token,
    sines,
)
from vit.extensions.pretraining.targets import Pixels
from vit.models.backbone import run
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Block, Place
from vit.models.initialization import xavier_
from vit.models.vision_transformer import plain_layers
from vit.shapes import Float, Int


class MaskedAutoencoder(PatchPrediction):
    """Trains an encoder on a part of the patches, from which a decoder predicts the others.

    Args:
        name: Model name, a ViT; PatchPrediction has the other options.
        mask_ratio: Share of the patches of each image that the encoder does not see, in (0, 1).
        mask_in_encoder: The encoder sees mask tokens in place of masked patches (Table 1c), for
            comparison: the decoder gets all tokens from it and has none of its own.
        decoder_width: Size of the decoder's tokens; its MLPs are four times as wide.
        decoder_depth: Its layers.
        decoder_heads: Its attention heads.
        norm_pix: The pixels of a patch are predicted less their mean, over their deviation.
    """

    caption = (
        "the image; the patches that the encoder saw; every other patch as the decoder predicted "
        "it{note}; the true ones."
    )

    def __init__(
        self,
        name: str | None = None,
        *,
        mask_ratio: float = 0.75,
        mask_in_encoder: bool = False,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        norm_pix: bool = True,
        **shared: Any,
    ) -> None:
        check_range("mask_ratio", mask_ratio, FRACTION)
        super().__init__(name, predicted=Pixels(norm_pix), **shared)
        self.mask_ratio, self.mask_in_encoder = mask_ratio, mask_in_encoder
        config = self.model.config
        self._check_masks(config.num_patches)
        fix_positions(self.model, fresh=self.load_report is None)
        self.decoder = Decoder(config, decoder_width, decoder_depth, decoder_heads)
        self.mask_token = mask_token(config.width if mask_in_encoder else decoder_width)

    def _seen(self, patches: int) -> int:
        return int(patches * (1 - self.mask_ratio))

    def _check_masks(self, patches: int) -> None:
        """UserError for a mask of no patch or of all, and for layers that need the whole grid."""
        seen = self._seen(patches)
        if not 0 < seen < patches:
            raise UserError(
                f"mask_ratio={self.mask_ratio:g} leaves none of {patches} patches to "
                f"{'predict; raise it' if seen else 'see; lower it'}"
            )
        whole = (
            getattr(m, "whole_grid", False)  # needs every patch at its place in the grid
            or (isinstance(m, Block) and type(m.attn) is not Attention)
            for m in self.model.blocks.modules()
        )
        if any(whole) and not self.mask_in_encoder:
            raise UserError(
                "positions that each layer computes, and mixers, are not for a part of the patches:"
                " choose a model.architecture.variant without mixer, with positions at the stem"
            )

    def draw(self, uniforms: Float[Tensor, "b 1 n"]) -> Corruption:
        """Masks at all patches but those of the smallest numbers, as in the official code."""
        return draw_masks(uniforms, self._seen(uniforms.shape[-1]))

    def predict(self, patches: Tensor, grid: Grid, hidden: Corruption) -> Tensor:
        """Predicted pixels of the masked patches, channel by channel."""
        encoder, decoder, token = self.model, self.decoder, self.mask_token
        if self.mask_in_encoder:
            tokens = encoder.encode(hidden(patches, token), grid)
        else:
            tokens = encoder.encode(patches, grid, keep=hidden.seen)
        # Where the final norm follows the pooling, it is here; elsewhere fc_norm does nothing.
        tokens = decoder.embed(encoder.fc_norm(tokens))
        prefix, seen = tokens.tensor_split([encoder.num_prefix_tokens], dim=1)
        if not self.mask_in_encoder:
            masks = token.to(seen.dtype).expand(*patches.shape[:2], -1)
            seen = masks.scatter(1, hidden.seen[..., None].expand_as(seen), seen)
        place = Place(*grid, encoder.num_prefix_tokens)
        return decoder(prefix, seen, hidden.chosen, place, encoder.activation_checkpointing)


class Decoder(nn.Module):
    """Decoder of the encoder's tokens to the pixels of the masked patches.

    Its layers are the encoder's of another size, without dropout, stochastic depth and LayerScale;
    its positions are fixed, and prefix tokens have none.
    """

    positions: Tensor

    def __init__(self, encoder: ViTConfig, width: int, depth: int, num_heads: int) -> None:
        super().__init__()
        none: dict[str, Any] = {"dropout": 0.0, "drop_path": 0.0, "layer_scale": None}
        sizes = {"width": width, "depth": depth, "num_heads": num_heads, "mlp_dim": 4 * width}
        try:
            config = replace(encoder, **sizes, **none, rotary=None)
            positions = sines(encoder, width, encoder.num_prefix_tokens)
        except UserError as error:
            raise UserError(f"the decoder (decoder_width, _depth, _heads): {error}") from None
        self.embed = nn.Linear(encoder.width, width)
        self.register_buffer("positions", positions, persistent=False)
        blocks = plain_layers(config)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width, eps=encoder.layer_norm_eps)
        self.predictor = nn.Linear(width, 3 * encoder.patch_size**2)
        for layer in (self.embed, self.predictor):
            xavier_(layer)
        for block in blocks:
            block.init_weights()

    def forward(
        self,
        prefix: Float[Tensor, "b p d"],
        patches: Float[Tensor, "b n d"],
        chosen: Int[Tensor, "b m"],
        place: Place,
        recompute: bool,
    ) -> Float[Tensor, "b m o"]:
        """Pixels of the `chosen` patches. `recompute`: of layers, in the backward pass."""
        x = torch.cat([prefix, patches], dim=1) + self.positions.to(patches.dtype)
        for block in self.blocks:
            x = run(block, recompute, x, place)
        return self.predictor(self.norm(rows(x[:, place.num_prefix :], chosen)))
