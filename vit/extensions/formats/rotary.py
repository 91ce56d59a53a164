"""Rotary positions: queries and keys of the patches turn by angles of their place.

RoFormer (arXiv:2104.09864) in two axes: a pair of channels turns by (coordinate times frequency),
half of the pairs by the row and half by the column, so that a score depends on the difference of
two places only. DINOv3 (arXiv:2508.10104; dinov3/layers/rope_position_encoding.py).
Shapes: n = gh gw patches row by row, e channels per head.
"""

import math

import torch
from torch import Tensor, nn

from vit.models.config import Rotary, ViTConfig
from vit.models.encoder import Rotation


class RotaryEmbedding(nn.Module):
    """The rotation for any grid, computed per forward pass; in training at moved coordinates."""

    def __init__(self, config: ViTConfig, rotary: Rotary) -> None:
        super().__init__()
        self.rotary = rotary
        self.head_size = config.head_size

    def forward(self, grid: tuple[int, int], like: Tensor) -> Rotation:
        """For (rows, columns) of patches, on the device of `like`, in float32 at least."""
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        count = self.head_size // 4
        exponents = torch.arange(count, dtype=torch.float32, device=like.device) / count
        bands = (2 * math.pi * (1.0 / self.rotary.period**exponents)).to(dtype)
        axes = self._coordinates(grid, like.device)
        angles = torch.cat([axis.to(dtype)[:, None, None] * bands for axis in axes], dim=-1)
        cos, sin = angles.cos(), angles.sin()  # n 1 e/2
        return Rotation(torch.cat([cos, cos], -1), torch.cat([sin, sin], -1))

    def _coordinates(self, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column of the centre of each patch, `n` each, from -1 to 1."""
        axes = []
        for count in grid:
            centres = torch.arange(count, dtype=torch.float32, device=device) + 0.5
            axes.append(2 * (centres / count) - 1)
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
