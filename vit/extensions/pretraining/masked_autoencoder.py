"""MaskedAutoencoder: most patches are left out, and a small decoder paints them (MAE).

"Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377); facebookresearch/mae,
models_mae.py. Cost with 75 % masked, counted operations of a training step: 1 / 2.35 of that of an
encoder that sees mask tokens (ViT-B/16), 1 / 3.23 (L/16), 1 / 3.6 (H/14).
Shapes: b batch, h w pixels, n patches, m masked patches an image, k kept ones, p prefix tokens,
d width of the decoder, o = 3 * side * side pixels of a patch.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import UserError, check_range
from vit.extensions.pretraining.masking import FRACTION, Corruption, draw_masks, rows
from vit.extensions.pretraining.pixel_prediction import PixelPrediction, sines
from vit.models.backbone import run
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Block, Place
from vit.models.initialization import xavier_
from vit.models.vision_transformer import plain_layers
from vit.shapes import Float, Int


class MaskedAutoencoder(PixelPrediction):
    """Trains an encoder on a part of the patches, from which a decoder predicts the others.

    Args:
        name: Model name, a ViT; PixelPrediction and PatchPrediction have the other options.
        mask_ratio: Share of the patches of each image that the encoder does not see, in (0, 1).
        mask_in_encoder: The encoder sees mask tokens in place of masked patches (Table 1c), for
            comparison: the decoder gets all tokens from it and has none of its own.
        decoder_width: Size of the decoder's tokens; its MLPs are four times as wide.
        decoder_depth: Its layers.
        decoder_heads: Its attention heads.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        mask_ratio: float = 0.75,
        mask_in_encoder: bool = False,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        **shared: Any,
    ) -> None:
        check_range("mask_ratio", mask_ratio, FRACTION)
        super().__init__(name, **shared)
        self.mask_ratio, self.mask_in_encoder = mask_ratio, mask_in_encoder
        config = self.model.config
        kept = self._kept(config.num_patches)
        if not 0 < kept < config.num_patches:
            raise UserError(
                f"mask_ratio={mask_ratio:g} leaves none of {config.num_patches} patches to "
                f"{'predict; raise it' if kept else 'see; lower it'}"
            )
        self._check_layers()
        self.decoder = Decoder(config, decoder_width, decoder_depth, decoder_heads)
        width = config.width if mask_in_encoder else decoder_width
        self.mask_token = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.mask_token, std=0.02)
        self._predicts(self.decoder.predictor.out_features, 0)

    def _kept(self, patches: int) -> int:
        return int(patches * (1 - self.mask_ratio))

    def _check_layers(self) -> None:
        """UserError for layers that need every patch at its place in the grid."""
        whole = (
            getattr(m, "whole_grid", False)
            or (isinstance(m, Block) and type(m.attn) is not Attention)
            for m in self.model.blocks.modules()
        )
        if any(whole) and not self.mask_in_encoder:
            raise UserError(
                "positions that each layer computes, and mixers, are not for a part of the patches:"
                " choose a model.architecture.variant without mixer, with positions at the stem"
            )

    @property
    def caption(self) -> str:
        return (
            "the image; the patches that the encoder saw; every other patch as the decoder "
            f"predicted it{self.given}; the true ones."
        )

    def drawn(self, uniforms: Float[Tensor, "b 1 n"]) -> Corruption:
        """Masks at all patches but those of the smallest numbers, as in the official code."""
        return draw_masks(uniforms, self._kept(uniforms.shape[-1]))

    def forward(
        self, images: Float[Tensor, "b 3 h w"], corruption: Corruption
    ) -> Float[Tensor, "b m o"]:
        """Predicted pixels of the masked patches, channel by channel."""
        # With precision bf16-true, images still come in float32.
        patches, grid = self.model.embed(images.to(self.dtype))
        if self.mask_in_encoder:
            tokens = self.model.encode(corruption(patches, self.mask_token), grid)
        else:
            tokens = self.model.encode(patches, grid, keep=corruption.kept)
        # Where the final norm follows the pooling, it is here; elsewhere fc_norm does nothing.
        tokens = self.decoder.embed(self.model.fc_norm(tokens))
        prefix, seen = tokens.tensor_split([self.model.num_prefix_tokens], dim=1)
        if not self.mask_in_encoder:
            masks = self.mask_token.to(seen.dtype).expand(*patches.shape[:2], -1)
            seen = masks.scatter(1, corruption.kept[..., None].expand_as(seen), seen)
        place = Place(*grid, self.model.num_prefix_tokens)
        recompute = self.model.activation_checkpointing
        predicted = self.decoder(prefix, seen, corruption.chosen, place, recompute)
        return predicted.to(images.dtype)


class Decoder(nn.Module):
    """From the encoder's tokens to the pixels of the masked patches.

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
        self.blocks = nn.ModuleList(plain_layers(config))
        self.norm = nn.LayerNorm(width, eps=encoder.layer_norm_eps)
        self.predictor = nn.Linear(width, 3 * encoder.patch_size**2)
        for layer in (self.embed, self.predictor):
            xavier_(layer)
        layers: list[Any] = [*self.blocks]
        for layer in layers:
            layer.init_weights()

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
            x = run(block, x, recompute, place)
        return self.predictor(self.norm(rows(x[:, place.num_prefix :], chosen)))
