"""Rotary positions: queries and keys of the patches turn by angles of their place.

RoFormer (arXiv:2104.09864) in two axes: a pair of channels turns by (coordinate times frequency),
half of the pairs by the row and half by the column, so that a score depends on the difference of
two places only. DINOv3 (arXiv:2508.10104; dinov3/layers/rope_position_encoding.py).
Shapes: n = gh gw patches row by row, e channels per head.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.config import Rotary, ViTConfig
from vit.models.encoder import Attention, Rotation
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float

UNMOVED = Rotary()  # made here, as torch.compile cannot trace its checks


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """The model with rotary positions in every layer, and with no bias of keys but by request."""
    model = VisionTransformer(config) if model is None else model
    rotary = Rotary.of(config.rotary)
    model.rope = RotaryEmbedding(rotary, config.head_size)
    for module in model.blocks.modules():
        if isinstance(module, Attention) and not rotary.key_bias:
            module.qkv.__class__ = KeylessBias
    return model


class KeylessBias(nn.Linear):
    """The joint matrix of queries, keys and values without the bias of the keys.

    DINOv3 (dinov3/layers/attention.py, LinearKMaskedBias). After a rotation such a bias changes
    scores. It stays in the state dict, so that the shape is that of every other model.
    """

    def forward(self, input: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d3"]:
        q, k, v = self.bias.chunk(3)  # zeros in place of those of the keys, which get no gradient
        return F.linear(input, self.weight, torch.cat([q, torch.zeros_like(k), v]))


class RotaryEmbedding(nn.Module):
    """The rotation for any grid, computed per forward pass; in training at moved coordinates."""

    def __init__(self, rotary: Rotary, head_size: int) -> None:
        super().__init__()
        self.rotary, self.head_size = rotary, head_size

    def forward(self, grid: tuple[int, int], like: Tensor) -> Rotation:
        """Rotation for (rows, columns) of patches, on the device of `like`, in float32 at least."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        count = self.head_size // 4
        exponents = torch.arange(count, dtype=torch.float32, device=like.device) / count
        bands = (2 * math.pi * (1.0 / self.rotary.period**exponents)).to(dtype)
        places = torch.meshgrid(*self._axes(grid, like.device), indexing="ij")
        angles = [place.flatten().to(dtype)[:, None, None] * bands for place in places]
        angles = torch.cat(angles, dim=-1)  # n 1 e/2
        return Rotation(*(torch.cat([wave, wave], -1) for wave in (angles.cos(), angles.sin())))

    def _axes(self, grid: tuple[int, int], device: torch.device) -> list[Tensor]:
        """The centres of rows and of columns from -1 to 1; in training after shift, jitter and
        rescaling, drawn once per call."""
        axes = [torch.arange(count, dtype=torch.float32, device=device) for count in grid]
        axes = [2 * ((axis + 0.5) / count) - 1 for axis, count in zip(axes, grid, strict=True)]

        def drawn(count: int, most: float) -> Tensor:
            return axes[0].new_empty(count).uniform_(-most, most)

        moves = self.rotary if self.training else UNMOVED
        if moves.shift is not None:
            axes = [axis + by for axis, by in zip(axes, drawn(2, moves.shift), strict=True)]
        if moves.jitter is not None:
            factors = drawn(2, math.log(moves.jitter)).exp()
            axes = [axis * factor for axis, factor in zip(axes, factors, strict=True)]
        if moves.rescale is not None:
            factor = drawn(1, math.log(moves.rescale)).exp()
            axes = [axis * factor for axis in axes]
        return axes
