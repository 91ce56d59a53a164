"""Rotary positions: queries and keys of the patches turn by angles of their place.

RoFormer (arXiv:2104.09864) in two axes: a pair of channels turns by (coordinate times frequency),
half of the pairs by the row and half by the column, so that a score depends on the difference of
two places only. DINOv3 (arXiv:2508.10104; dinov3/layers/rope_position_encoding.py).
Shapes: n = gh gw patches row by row, e channels per head.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, UserError, check_range
from vit.models.config import ViTConfig
from vit.models.encoder import Attention, Rotation
from vit.models.fields import check_kinds, known_fields
from vit.models.vision_transformer import VisionTransformer
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Rotary positions of DINOv3 (arXiv:2508.10104): queries and keys of the patches turn by angles
    that grow with row and column (arXiv:2104.09864), from -1 to 1 along each axis of any grid."""

    period: float = 100.0
    """The longest period over the shortest one; the others are a geometric series between them."""
    key_bias: bool = False
    """The keys have biases; without, those in `qkv.bias` are not used and not trained."""
    shift: float | None = None
    """In training, coordinates of an axis move by up to this much, uniformly per batch."""
    jitter: float | None = None
    """In training, each axis is scaled by a factor from 1/jitter to jitter, log-uniformly."""
    rescale: float | None = None
    """In training, both axes are scaled by one factor from 1/rescale to rescale, log-uniformly."""

    def __post_init__(self) -> None:
        check_kinds(self)
        check_range("period", self.period, POSITIVE)
        ranges = {"shift": NOT_NEGATIVE, "jitter": AT_LEAST_ONE, "rescale": AT_LEAST_ONE}
        for name, allowed in ranges.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, allowed)

    @classmethod
    def of(cls, values: object) -> "Rotary":
        """Rotary positions from plain JSON types."""
        if isinstance(values, Rotary):
            return values
        if not isinstance(values, Mapping):
            raise UserError(f"rotary={values!r} must be an object such as {{}}, DINOv3's, or null")
        try:
            return cls(**known_fields(cls, dict(values)))
        except UserError as error:
            raise UserError(f"rotary: {error}") from None


UNMOVED = Rotary()  # made here, as torch.compile cannot trace its checks


def build(config: ViTConfig, model: VisionTransformer | None) -> VisionTransformer:
    """The model with rotary positions in every layer, and with no bias of keys but by request."""
    model = VisionTransformer(config) if model is None else model
    rotary = Rotary.of(config.rotary)
    if config.head_size % 4:
        raise UserError(
            f"rotary positions turn pairs of channels along two axes, so the head size must be "
            f"a multiple of 4; width={config.width} with num_heads={config.num_heads} makes it "
            f"{config.head_size}"
        )
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
