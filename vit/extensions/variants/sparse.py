"""Sparse attention: windows, rows and columns, blocks. Scores that are not needed are not computed.

Shapes: b batch, p prefix tokens, m = p + rows x columns tokens, heads, e channels per head, w
windows of s patches; n blocks of s tokens, r blocks that a block sees.
"""

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.mixing import AttentionMixer
from vit.extensions.variants.options import Grid, Options, Sized
from vit.extensions.variants.relative import all_offsets, offset_index
from vit.models.config import ViTConfig
from vit.models.encoder import Place
from vit.shapes import Float, Int


@dataclass(frozen=True, kw_only=True)
class WindowOptions(Sized):
    """Options of windows. `size`: of a window, in patches; default: the whole grid."""

    shift: bool = True
    """In every other layer, from the second, the windows lie half a window further."""
    bias: bool = True
    """A learned bias of the scores for each 2-D offset between patches and each head."""


class WindowAttention(AttentionMixer):
    """Attention inside windows of the grid, which in every other layer are shifted.

    Swin (arXiv:2103.14030, section 3.2): the grid is rolled by half a window; patches that only the
    rolling has brought together do not see each other; an axis that one window fills is not
    shifted. The bias is that of equation 4, in timm's layout (`WindowAttention`); 0 for pairs with
    a prefix token. Cost: 4 m d^2 multiply-adds for queries, keys, values and output, 2 w s (s + p)
    d for patches, 2 p m d for prefix tokens.
    """

    def __init__(self, options: WindowOptions, config: ViTConfig, layer: int) -> None:
        super().__init__(options, config, layer)
        assert isinstance(options.size, tuple)
        self.size = options.size
        self.shifted = options.shift and layer % 2 == 1
        self.by_layer = options.shift and self.size != config.grid
        self.check_grid(config.grid)
        entries = prod(all_offsets(*self.size))
        table = nn.Parameter(torch.zeros(entries, config.num_heads)) if options.bias else None
        self.relative_position_bias_table = table

    def check_grid(self, grid: Grid) -> None:
        if any(whole % side for side, whole in zip(self.size, grid, strict=True)):
            rows, columns = (
                ", ".join(str(side) for side in range(1, whole + 1) if whole % side == 0)
                for whole in grid
            )
            raise UserError(
                f"windows of size={list(self.size)} do not divide the {grid[0]} x {grid[1]} "
                f"patches; choose rows from {rows}, and columns from {columns}"
            )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        grid = (place.rows, place.columns)
        self.check_grid(grid)
        rows, columns = (
            side // 2 if self.shifted and side < whole else 0
            for side, whole in zip(self.size, grid, strict=True)
        )
        bias = self._bias(place, (rows, columns), q)
        return local_attention(q, k, v, place, self.size, (rows, columns), bias)

    def _bias(self, place: Place, shift: Grid, q: Tensor) -> Float[Tensor, "1 w_heads s t"] | None:
        """Bias of the scores of a window's patches, window by window."""
        table = self.relative_position_bias_table
        if table is None and not any(shift):
            return None
        rows, columns = (
            torch.arange(whole, device=q.device) >= whole - by
            for whole, by in zip((place.rows, place.columns), shift, strict=True)
        )
        parts = (2 * rows[:, None] + columns).to(q.dtype).flatten()[None, None, :, None]
        parts = windows(parts, place, self.size, (0, 0))[0, :, None]  # w 1 s 1
        bias = torch.zeros_like(parts).masked_fill(parts != parts.mT, -torch.inf)
        if table is None:
            bias = bias.expand(-1, self.num_heads, -1, -1)
        else:
            offsets = offset_index(Place(*self.size, 0), q.device)
            bias = bias + table[offsets].permute(2, 0, 1).to(q.dtype)
        return F.pad(bias, (place.num_prefix, 0)).flatten(0, 1)[None]

    def init_weights(self) -> None:
        """The table as in timm."""
        super().init_weights()
        if self.relative_position_bias_table is not None:
            nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)


def windows(
    x: Float[Tensor, "b heads n e"], place: Place, size: Grid, shift: Grid
) -> Float[Tensor, "b w_heads s e"]:
    """Patches in raster order, window by window, after the grid has been rolled back by `shift`."""
    x = x.unflatten(2, (place.rows, place.columns)).roll((-shift[0], -shift[1]), (2, 3))
    x = x.unflatten(3, (-1, size[1])).unflatten(2, (-1, size[0]))  # b heads rows s0 columns s1 e
    return x.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(1, 3)


def local_attention(
    q: Float[Tensor, "b heads m e"],
    k: Float[Tensor, "b heads m e"],
    v: Float[Tensor, "b heads m e"],
    place: Place,
    size: Grid,
    shift: Grid = (0, 0),
    bias: Float[Tensor, "1 w_heads s t"] | None = None,
) -> Float[Tensor, "b heads m e"]:
    """Attention of patches to the prefix tokens and their window, of prefix tokens to all."""
    p, heads = place.num_prefix, q.shape[1]
    count = place.rows // size[0] * (place.columns // size[1])
    inside = windows(q[:, :, p:], place, size, shift)
    seen = [
        torch.cat([x[:, :, :p].repeat(1, count, 1, 1), windows(x[:, :, p:], place, size, shift)], 2)
        for x in (k, v)
    ]
    y = F.scaled_dot_product_attention(inside, *seen, attn_mask=bias)
    y = y.unflatten(2, size).unflatten(1, (place.rows // size[0], place.columns // size[1], heads))
    y = y.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # b heads rows columns e
    y = y.roll(shift, (2, 3)).flatten(2, 3)
    if not p:
        return y
    return torch.cat([F.scaled_dot_product_attention(q[:, :, :p], k, v), y], 2)


@dataclass(frozen=True, kw_only=True)
class AxialOptions(Options):
    """Options of axial attention."""

    axes: Literal["both", "alternate"] = "both"
    """A layer attends along rows and then along columns; or along rows, and the next one along
    columns, which is the paper's, where an MLP follows each."""


class AxisAttention(AttentionMixer):
    """A patch sees those of its row, or those of its column."""

    def __init__(self, options: AxialOptions, config: ViTConfig, axis: int) -> None:
        super().__init__(options, config, axis)
        self.axis = axis

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        size = (place.rows, 1) if self.axis else (1, place.columns)
        return local_attention(q, k, v, place, size)


class Axial(nn.Module):
    """Attention along rows, then along columns: ViT (arXiv:2010.11929, appendix D.6).

    One after the other without a residual in between, as in Axial-DeepLab (arXiv:2003.07853).
    Cost of a half: 4 m d^2 multiply-adds for queries, keys, values and output, 2 n (c + p) d for n
    patches in rows of c, 2 p m d for prefix tokens.
    """

    ignores_mask = True

    def __init__(self, options: AxialOptions, config: ViTConfig, layer: int) -> None:
        super().__init__()
        self.by_layer = options.axes == "alternate"
        axes = (layer % 2,) if self.by_layer else (0, 1)
        self.halves = nn.ModuleList(AxisAttention(options, config, axis) for axis in axes)

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        for half in self.halves:
            x = half(x, place)
        return x

    def init_weights(self) -> None:
        for half in self.halves:
            assert isinstance(half, AxisAttention)
            half.init_weights()


@dataclass(frozen=True, kw_only=True)
class BigBirdOptions(Options):
    """Options of BigBird."""

    from_zero = ("random", "seed")
    block: int = 16
    """Tokens of a block; at least as many as there are prefix tokens."""
    window: int = 3
    """Blocks of the window around a block, an odd number."""
    random: int = 1
    """Blocks that a block sees beside them."""
    seed: int = 0
    """Of the draws of random blocks, which differ among layers and heads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window % 2 == 0:
            raise UserError(f"window={self.window} must be odd, so that its middle is a block")


class BigBird(AttentionMixer):
    """A block of tokens sees its window, the first and the last block, and some at random.

    BigBird-ITC (arXiv:2007.14062, section 2 and appendix D; transformers'
    `BigBirdBlockSparseAttention`): first and last block see all. Keys are gathered block by block;
    the sequence is padded to whole blocks, and no token sees padding. Random blocks are those with
    the largest hash of seed, layer, head, and both blocks. Cost: 4 m d^2 multiply-adds for queries,
    keys, values and output, 2 (n - 2) s r s d for the inner blocks, 2 m (m - (n - 2) s) d for the
    first and the last.
    """

    index: Tensor

    def __init__(self, options: BigBirdOptions, config: ViTConfig, layer: int) -> None:
        super().__init__(options, config, layer)
        self.options, self.layer, self.tokens = options, layer, config.num_tokens
        self.num_prefix = config.num_prefix_tokens
        if config.num_prefix_tokens > options.block:
            raise UserError(
                f"block={options.block} is fewer than the {config.num_prefix_tokens} prefix tokens"
            )
        # On the CPU: files do not contain it, so a meta model would never get it.
        index = self._index(self.tokens, torch.device("cpu"))
        self.register_buffer("index", index, persistent=False)

    def check_grid(self, grid: Grid) -> None:
        self._index(self.num_prefix + prod(grid), torch.device("cpu"))

    def _index(self, tokens: int, device: torch.device) -> Int[Tensor, "heads inner r"]:
        """The blocks that each inner block sees; those behind are -1."""
        options, n = self.options, -(-tokens // self.options.block)
        least = options.window // 2 + 3 + options.random
        if least > n:
            raise UserError(
                f"block={options.block}, window={options.window} and random={options.random} need "
                f"{least} blocks, and {tokens} tokens make {n}; lower them"
            )
        key = torch.arange(n, device=device)
        query = key[1:-1, None]
        always = ((key - query).abs() <= options.window // 2) | (key == 0) | (key == n - 1)
        group = (options.seed * 1_000 + self.layer) * self.num_heads
        heads = group + torch.arange(self.num_heads, device=device)[:, None, None]
        rank = hashed((heads * n + query) * n + key).masked_fill(always, 2**32)
        order = rank.topk(min(n, options.window + 2 + options.random)).indices
        used = always.sum(-1, keepdim=True) + options.random
        return order.masked_fill(torch.arange(order.shape[-1], device=device) >= used, -1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        m, s = q.shape[2], self.options.block
        index = self.index if m == self.tokens else self._index(m, q.device)
        heads, inner, _ = index.shape
        n = inner + 2
        blocks = torch.arange(heads, device=q.device)[:, None, None] * n + index.clamp(min=0)
        seen = [
            F.pad(x, (0, 0, 0, n * s - m)).unflatten(2, (n, s)).flatten(1, 2)
            .index_select(1, blocks.flatten()).unflatten(1, index.shape)
            .flatten(3, 4).flatten(1, 2)
            for x in (k, v)
        ]  # fmt: skip
        inside = q[:, :, s : (n - 1) * s].unflatten(2, (inner, s)).flatten(1, 2)
        mask = self._mask(index, m)[None].expand(-1, -1, s, -1)
        middle = F.scaled_dot_product_attention(inside, *seen, attn_mask=mask)
        middle = middle.unflatten(1, (heads, inner)).flatten(2, 3)
        ends = torch.cat([q[:, :, :s], q[:, :, (n - 1) * s :]], 2)
        first, last = F.scaled_dot_product_attention(ends, k, v).tensor_split([s], dim=2)
        return torch.cat([first, middle, last], 2)

    def _mask(self, index: Tensor, tokens: int) -> Tensor:
        """`(heads inner) 1 (r s)`: true for tokens of the blocks that there are, less padding."""
        s = self.options.block
        token = index[..., None] * s + torch.arange(s, device=index.device)
        return ((index[..., None] >= 0) & (token < tokens)).flatten(2, 3).flatten(0, 1)[:, None]


def hashed(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """32 bits that look random, the same on every device (Mueller and Wellons, `lowbias32`)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * factor) & 0xFFFFFFFF
    return x ^ (x >> 16)
