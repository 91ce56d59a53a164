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
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError, check_range
from vit.models.backbone import run
from vit.models.config import ViTConfig
from vit.models.embedding import sincos2d
from vit.models.encoder import Block
from vit.models.initialization import xavier_
from vit.models.rotary import Place
from vit.models.vision_transformer import plain_layers
from vit.shapes import Float, Int
from vit.training.masking import FRACTION, Corruption, draw_masks, patch_pixels, rows
from vit.training.patch_prediction import PatchPrediction

EPSILON = 1e-6
"""Added to the variance of a patch's pixels."""


class MaskedAutoencoder(PatchPrediction):
    """Trains an encoder on a part of the patches, from which a decoder predicts the others.

    A learned table of positions is fixed here, as in the official code: at sines and cosines, or as
    `pretrained` has it. Fine-tuning trains it.

    Args:
        name: Model name as `vit models` lists it, a ViT; PatchPrediction has the other options.
        mask_ratio: Share of the patches of each image that the encoder does not see, in (0, 1).
        norm_pix: The pixels of a patch are predicted less their mean, over their deviation.
        mask_in_encoder: The encoder sees mask tokens in place of masked patches (Table 1c), for
            comparison: the decoder gets all tokens from it and has none of its own.
        decoder_width: Size of the decoder's tokens; its MLPs are four times as wide.
        decoder_depth: Its layers.
        decoder_heads: Its attention heads.
    """

    kinds = "a ViT, not a hybrid, whose patches overlap, nor a ResNet, which has none"
    overlapping = False
    numbers = 1

    def __init__(
        self,
        name: str | None = None,
        *,
        mask_ratio: float = 0.75,
        norm_pix: bool = True,
        mask_in_encoder: bool = False,
        decoder_width: int = 512,
        decoder_depth: int = 8,
        decoder_heads: int = 16,
        **shared: Any,
    ) -> None:
        check_range("mask_ratio", mask_ratio, FRACTION)
        super().__init__(name, **shared)
        self.mask_ratio, self.norm_pix = mask_ratio, norm_pix
        self.mask_in_encoder = mask_in_encoder
        config = self.model.config
        kept = self._kept(config.num_patches)
        if not 0 < kept < config.num_patches:
            raise UserError(
                f"mask_ratio={mask_ratio:g} leaves none of {config.num_patches} patches to "
                f"{'predict; raise it' if kept else 'see; lower it'}"
            )
        self._check_layers()
        self._fix_positions()
        self.decoder = Decoder(config, decoder_width, decoder_depth, decoder_heads)
        self.mask_token = nn.Parameter(
            torch.zeros(config.width if mask_in_encoder else decoder_width)
        )
        nn.init.normal_(self.mask_token, std=0.02)
        self._predicts(self.decoder.predictor.out_features, 0)

    def _kept(self, patches: int) -> int:
        return int(patches * (1 - self.mask_ratio))

    def _check_layers(self) -> None:
        """UserError for layers that need every patch at its place in the grid."""
        plain = all(type(b) is Block and b.attn.rel_pos is None for b in self.model.blocks)
        if not (plain or self.mask_in_encoder):
            raise UserError(
                "positions that each layer computes are not for a part of the patches: choose a "
                "model.architecture.variant whose positions are at the stem"
            )

    @torch.no_grad()
    def _fix_positions(self) -> None:
        config, table = self.model.config, self.model.pos_embed
        if table is None:
            return
        table.requires_grad_(False)
        if self.load_report is None:
            table.copy_(sines(config, config.width, config.num_position_slots))

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
            raise UserError(
                f"the decoder of model.decoder_width, _depth, _heads: {error}"
            ) from None
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


def moments(
    parts: Float[Tensor, "b n o"],
) -> tuple[Float[Tensor, "b n 1"], Float[Tensor, "b n 1"]]:
    """Mean of a patch's pixels, and the root of their unbiased variance plus EPSILON."""
    variance, mean = torch.var_mean(parts, dim=-1, keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def sines(config: ViTConfig, width: int, slots: int) -> Float[Tensor, "1 slots_n d"]:
    """The official code's fixed positions, zero for `slots` tokens before the patches.

    Its frequencies are 10,000^(-4i/width); those of `sincos2d` have width / 4 - 1 below the i.
    """
    return F.pad(sincos2d(config.grid, width, 10_000 ** (1 - 4 / width)), (0, 0, slots, 0))
