"""Rotary positions: queries and keys of the patches are turned by angles of their place.

RoFormer (arXiv:2104.09864) in two axes: a pair of channels of a head turns by (coordinate times
frequency), half of the pairs by the row and half by the column, so that the product of a query and
a key depends on the difference of their places only. DINOv3 (arXiv:2508.10104; official code:
dinov3/layers/rope_position_encoding.py), EVA-02 (arXiv:2303.11331) and RoPE-ViT (arXiv:2403.13298).
Shapes: b batch, m tokens (prefix tokens first), n = gh gw patches row by row, e channels per head.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.models.config import Rotary, ViTConfig
from vit.shapes import Float


class Rotation(NamedTuple):
    """What a layer needs to turn its queries and keys: its own table, or that of all layers."""

    cos: Float[Tensor, "n heads e"]
    """Of one head for all where the angles are shared."""
    sin: Float[Tensor, "n heads e"]
    num_prefix: int
    """Tokens before the patches, which are not turned."""
    halves: bool
    """Whether channels i and i + e / 2 turn together, rather than 2 i and 2 i + 1."""


def rotated(x: Float[Tensor, "b heads m e"], rotation: Rotation) -> Float[Tensor, "b heads m e"]:
    """Queries or keys with the patches turned, in the dtype of `x`; computed in the table's.

    In memory a token's heads stay side by side, as in the product that `x` is a part of, so that
    the output of attention needs no copy.
    """
    prefix, patches = x.transpose(1, 2).tensor_split([rotation.num_prefix], dim=1)  # b n heads e
    if rotation.halves:
        first, second = patches.chunk(2, dim=-1)
        across = torch.cat([-second, first], dim=-1)
    else:
        across = torch.stack([-patches[..., 1::2], patches[..., ::2]], dim=-1).flatten(-2)
    turned = (patches * rotation.cos + across * rotation.sin).to(x.dtype)
    if rotation.num_prefix:
        turned = torch.cat([prefix, turned], dim=1)
    return turned.transpose(1, 2)


class RotaryEmbedding(nn.Module):
    """Rotations for any grid, computed per forward pass; in training at moved coordinates.

    It has parameters only if the frequencies are learned: `freqs`, `2 layers heads e/2`, of the two
    axes.
    """

    def __init__(self, config: ViTConfig, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary
        self.head_size, self.depth = config.head_size, config.depth
        self.num_prefix = config.num_prefix_tokens
        self.freqs = None
        if rotary.learned:
            shape = (2, config.depth, config.num_heads, config.head_size // 2)
            self.freqs = nn.Parameter(torch.zeros(shape))

    def forward(self, grid: tuple[int, int], like: Tensor) -> list[Rotation]:
        """The rotation of each layer for (rows, columns) of patches, on the device of `like`.

        At least float32, whatever the dtype of the model: bfloat16 has too few digits for angles.
        """
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        rows, columns = self._coordinates(grid, like.device)
        axes = [axis.to(dtype) for axis in (rows, columns)]
        if self.rotary.columns_first:
            axes.reverse()
        if self.freqs is not None:
            first, second = self.freqs.to(dtype)[:, :, None]  # layers 1 heads e/2
            axes = [axis[:, None, None] for axis in axes]
            angles = axes[0] * first + axes[1] * second  # layers n heads e/2
        else:
            bands = self._frequencies(like.device).to(dtype)
            angles = torch.cat([axis[:, None, None] * bands for axis in axes], -1)  # n 1 e/2
        cos, sin = self._per_channel(angles.cos()), self._per_channel(angles.sin())
        halves = self.rotary.pairing == "halves"
        layers = range(self.depth)
        if self.freqs is not None:
            return [Rotation(cos[i], sin[i], self.num_prefix, halves) for i in layers]
        return [Rotation(cos, sin, self.num_prefix, halves) for _ in layers]

    def _per_channel(self, values: Tensor) -> Tensor:
        """Values of pairs `... e/2` for each channel of a pair, `... e`."""
        if self.rotary.pairing == "halves":
            return torch.cat([values, values], dim=-1)
        return values.repeat_interleave(2, dim=-1)

    def _frequencies(self, device: torch.device) -> Tensor:
        """Radians per unit of the coordinates, `e/4`."""
        count = self.head_size // 4
        exponents = torch.arange(count, dtype=torch.float32, device=device) / count
        bands = 1.0 / self.rotary.period**exponents
        return 2 * math.pi * bands if self.rotary.coordinates == "centred" else bands

    def _coordinates(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column coordinate of each patch, `n` each."""
        axes = []
        for axis, count in enumerate(grid):
            numbers = torch.arange(count, dtype=torch.float32, device=device)
            if self.rotary.coordinates == "centred":
                numbers = 2 * ((numbers + 0.5) / count) - 1
            else:
                numbers = numbers + self.rotary.offset
                if self.rotary.reference is not None:
                    numbers = numbers / count * self.rotary.reference[axis]
            axes.append(numbers)
        if self.training:
            axes = self._moved(axes)
        rows, columns = torch.meshgrid(*axes, indexing="ij")
        return rows.flatten(), columns.flatten()

    def _moved(self, axes: list[Tensor]) -> list[Tensor]:
        """The coordinates of both axes after shift, jitter and rescaling, drawn once per call."""

        def drawn(count: int, most: float) -> Tensor:
            return axes[0].new_empty(count).uniform_(-most, most)

        rows, columns = axes
        if self.rotary.shift is not None:
            shift = drawn(2, self.rotary.shift)
            rows, columns = rows + shift[0], columns + shift[1]
        if self.rotary.jitter is not None:
            factors = drawn(2, math.log(self.rotary.jitter)).exp()
            rows, columns = rows * factors[0], columns * factors[1]
        if self.rotary.rescale is not None:
            factor = drawn(1, math.log(self.rotary.rescale)).exp()
            rows, columns = rows * factor, columns * factor
        return [rows, columns]

    @torch.no_grad()
    def init_weights(self) -> None:
        """Learned frequencies: a geometric series along a random direction per layer and head.

        As in RoPE-Mixed's code (naver-ai/rope-vit, models/vit_rope.py, init_random_2d_freqs).
        """
        if self.freqs is None:
            return
        count = self.head_size // 4
        sizes = 1.0 / self.rotary.period ** (torch.arange(count, dtype=torch.float32) / count)
        angle = 2 * math.pi * torch.rand(*self.freqs.shape[1:3], 1)
        angles = torch.cat([angle, angle + math.pi / 2], dim=-1).repeat_interleave(count, dim=-1)
        sizes = torch.cat([sizes, sizes])
        self.freqs.copy_(torch.stack([sizes * angles.cos(), sizes * angles.sin()]))
