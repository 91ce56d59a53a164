"""Positions that are added to the patches: at the stem, or before every layer.

ViT (arXiv:2010.11929, appendix D.4 and Table 8). Shapes: b batch, n = rows x columns patches,
m tokens (prefix tokens first), d width. Prefix tokens get none: they are learned themselves.
Cost of all: n d additions where they are added; no products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.options import Grid, Options, Sized
from vit.models.config import PosResize, ViTConfig
from vit.models.embedding import resize_grid, sincos2d
from vit.models.encoder import Block, Place
from vit.shapes import Float

Placed = tuple["Tables", bool]
"""What the stem adds, and whether the layers are changed."""


@dataclass(frozen=True, kw_only=True)
class LearnedOptions(Sized):
    """Options of learned tables."""

    where: Literal["stem", "layers", "shared"] = "stem"
    """Added once, before every layer (each has its own), or one table before every layer."""


@dataclass(frozen=True, kw_only=True)
class FixedOptions(Options):
    """Options of fixed tables, which are computed for any grid."""

    where: Literal["stem", "layers"] = "stem"
    """Added once, or before every layer."""


class Tables(nn.Module):
    """A part whose parameters, if any, are tables of embeddings or biases."""

    def __init__(self, config: ViTConfig, options: Any) -> None:
        super().__init__()

    def init_weights(self) -> None:
        """Draws tables as the model's own table of positions."""
        for table in self.parameters():
            nn.init.normal_(table, std=0.02)


class Resampled(Tables):
    """Tables of one grid, which are resampled for others."""

    def __init__(self, config: ViTConfig, options: Any) -> None:
        super().__init__(config, options)
        self.size: Grid = options.size
        self.rule: PosResize = config.pos_resize


class Learned(Resampled):
    """An embedding of each patch in raster order: "1-D" in appendix D.4, the model's default."""

    def __init__(self, config: ViTConfig, options: Any) -> None:
        super().__init__(config, options)
        self.position_table = nn.Parameter(torch.zeros(1, prod(self.size), config.width))

    def forward(self, grid: Grid) -> Float[Tensor, "1 n d"]:
        return resize_grid(self.position_table, self.size, grid, self.rule)


class Learned2d(Resampled):
    """An embedding of the column beside one of the row, d / 2 each: "2-D" in appendix D.4."""

    def __init__(self, config: ViTConfig, options: Any) -> None:
        super().__init__(config, options)
        self.row_table = nn.Parameter(torch.zeros(self.size[0], halved(config.width)))
        self.column_table = nn.Parameter(torch.zeros(self.size[1], halved(config.width)))

    def forward(self, grid: Grid) -> Float[Tensor, "1 n d"]:
        rows, columns = self.size
        x = self.column_table.expand(rows, -1, -1)
        y = self.row_table[:, None].expand(-1, columns, -1)
        table = torch.cat([x, y], dim=-1).flatten(0, 1)[None]
        return resize_grid(table, self.size, grid, self.rule)


class Sincos2d(Tables):
    """Sine and cosine of column and row: the model's `pos_embed="sincos2d"` (arXiv:2205.01580)."""

    table: Tensor
    waves: Callable[[Grid, int], Tensor] = staticmethod(sincos2d)

    def __init__(self, config: ViTConfig, options: Any) -> None:
        super().__init__(config, options)
        self.grid, self.width = config.grid, config.width
        self.register_buffer("table", self.waves(self.grid, self.width), persistent=False)

    def forward(self, grid: Grid) -> Float[Tensor, "1 n d"]:
        return self.table if grid == self.grid else self.waves(grid, self.width).to(self.table)


class Sinusoids(Sincos2d):
    """Sine and cosine, in turns, of the place in raster order (arXiv:1706.03762, section 3.5)."""

    @staticmethod
    def waves(grid: Grid, width: int) -> Float[Tensor, "1 n d"]:
        # Always on the CPU: files do not contain them, so a meta model would never get them.
        kind: Any = {"dtype": torch.float64, "device": "cpu"}
        half = halved(width)
        frequencies = 10_000.0 ** -(torch.arange(half, **kind) / half)
        angles = torch.arange(prod(grid), **kind)[:, None] * frequencies
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()[None]


class NoTable(Tables):
    """Adds nothing at the stem; has the table that all layers add, if there is one."""

    def __init__(self, shared: Tables | None = None) -> None:
        super().__init__(ViTConfig(), None)
        self.shared = shared

    def forward(self, grid: Grid) -> None:
        return None


class PositionedBlock(Block):
    """A layer that adds positions to its patches first."""

    positions: Tables | None
    """The layer's own table."""
    shared: tuple[Tables, ...]
    """Or that of all layers, in a tuple, as it is no part of this one."""
    whole_grid = True

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        [positions] = self.shared or (self.positions,)
        assert positions is not None
        table = F.pad(positions((place.rows, place.columns)), (0, 0, place.num_prefix, 0))
        return super().forward(x + table.to(x.dtype), place)

    def init_weights(self) -> None:
        super().init_weights()
        if self.positions is not None:
            self.positions.init_weights()


def unordered(options: Options, config: ViTConfig, layers: list[Block]) -> Placed:
    """A set of patches: what the model computes does not depend on their order."""
    return NoTable(), False


def added(kind: type[Tables]) -> Callable[[Any, ViTConfig, list[Block]], Placed]:
    """Builds positions of this kind at the place that their options name."""

    def build(options: Any, config: ViTConfig, layers: list[Block]) -> Placed:
        if options.where == "stem":
            return kind(config, options), False
        shared = kind(config, options) if options.where == "shared" else None
        for layer in layers:
            layer.__class__ = PositionedBlock
            assert isinstance(layer, PositionedBlock)
            layer.positions = kind(config, options) if shared is None else None
            layer.shared = () if shared is None else (shared,)
        return NoTable(shared), True

    return build


def halved(width: int) -> int:
    """Half of an even width. UserError for an odd one."""
    if width % 2:
        raise UserError(f"these positions have two halves, so width={width} must be even")
    return width // 2
