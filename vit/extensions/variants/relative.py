"""Positions in attention: scores depend on where a key is as seen from its query.

Shapes: b batch, n = rows x columns patches, p prefix tokens, m = p + n tokens, heads, e channels
per head, t entries of a table, k the largest distance (Shaw).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.extensions.variants.additive import NoTable, Placed, Resampled, Tables
from vit.extensions.variants.attending import Biased
from vit.extensions.variants.options import Grid, Options, Sized
from vit.models.config import ViTConfig
from vit.models.embedding import resize_grid
from vit.models.encoder import Block, Place
from vit.shapes import Float, Int


@dataclass(frozen=True, kw_only=True)
class ShawOptions(Options):
    """Options of Shaw's positions."""

    from_zero = ("k",)
    k: int = 16
    """Largest distance in raster order that has an embedding; larger ones have that of k."""


def differences(
    place: Place, device: torch.device
) -> tuple[Int[Tensor, "n n"], Int[Tensor, "n n"]]:
    """Rows and columns from each key (second index) to each query (first)."""
    index = torch.arange(place.rows * place.columns, device=device)
    row, column = index // place.columns, index % place.columns
    return row[:, None] - row, column[:, None] - column


def all_offsets(rows: int, columns: int) -> Grid:
    """Rows and columns of a table that has an entry for each offset between two patches."""
    return 2 * rows - 1, 2 * columns - 1


def offset_index(place: Place, device: torch.device) -> Int[Tensor, "n n"]:
    """The entry of each pair in such a table, row by row, from the most negative offsets."""
    rows, columns = differences(place, device)
    return (rows + place.rows - 1) * (2 * place.columns - 1) + columns + place.columns - 1


def products(
    x: Float[Tensor, "b heads m e"],
    table: Float[Tensor, "*heads t e"],
    index: Int[Tensor, "n n"],
    place: Place,
) -> Float[Tensor, "b heads m m"]:
    """x_i . table[index_ij] for patches i and j; 0 for pairs with a prefix token."""
    p = place.num_prefix
    dots = x[:, :, p:] @ table.to(x.dtype).mT  # b heads n t
    pairs = dots.gather(-1, index.expand(*dots.shape[:2], -1, -1))
    return F.pad(pairs, (p, 0, p, 0))


class Relative(Resampled):
    """Query times embedding of the offset p_q - p_k in raster order, added to the scores.

    ViT (arXiv:2010.11929, appendix D.4, "Relative Positional Embeddings"): 1-dimensional relative
    attention, s_ij = q_i . (k_j + r_(i-j)) / sqrt(e). An embedding has d channels, divided among
    the heads; pairs with a prefix token have none. For another grid, the 2-D offsets' embeddings
    are resampled. Cost: 2 n (2n - 1) d operations an image, attention's own are 4 m^2 d; for
    another grid 2 n (2 rows - 1) (2 columns - 1) d.
    """

    def __init__(self, config: ViTConfig, options: Sized) -> None:
        super().__init__(config, options)
        self.num_heads = config.num_heads
        self.offset_table = nn.Parameter(torch.zeros(2 * prod(self.size) - 1, config.width))

    def forward(self, q: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        table, index = self._lookup(place, q.device)
        table = table.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)  # heads t e
        return products(q * q.shape[-1] ** -0.5, table, index, place)

    def _lookup(self, place: Place, device: torch.device) -> tuple[Tensor, Tensor]:
        grid, last = (place.rows, place.columns), len(self.offset_table) // 2
        if grid == self.size:
            rows, columns = differences(place, device)
            return self.offset_table, rows * place.columns + columns + last
        rows, columns = (torch.arange(1 - n, n, device=device) for n in self.size)
        flat = (rows[:, None] * self.size[1] + columns + last).flatten()
        old, new = all_offsets(*self.size), all_offsets(*grid)
        table = resize_grid(self.offset_table[flat][None], old, new, self.rule)[0]
        return table, offset_index(place, device)


class Shaw(Tables):
    """Embeddings of clipped distances, added to keys and to values.

    arXiv:1803.02155, equations 3 to 5: s_ij = q_i . (k_j + a^K_ij) / sqrt(e), z_i = sum over j of
    softmax(s)_ij (v_j + a^V_ij), with a_ij = w_clip(j - i, k) in raster order, shared among heads;
    0 for pairs with a prefix token. The table is the same for every grid. Cost: 4 n (2k + 1) d
    operations an image.
    """

    def __init__(self, config: ViTConfig, options: ShawOptions) -> None:
        super().__init__(config, options)
        self.k, entries = options.k, 2 * options.k + 1
        self.key_table = nn.Parameter(torch.zeros(entries, config.head_size))
        self.value_table = nn.Parameter(torch.zeros(entries, config.head_size))

    def forward(self, q: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        return products(q * q.shape[-1] ** -0.5, self.key_table, self._index(place, q), place)

    def value_products(self, x: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        """x_i . a^V_ij, `b heads m m`."""
        return products(x, self.value_table, self._index(place, x), place)

    def value_sums(self, weights: Float[Tensor, "b heads m m"], place: Place) -> Tensor:
        """Sum over j of weights_ij a^V_ij, `b heads m e`."""
        patches = weights[:, :, place.num_prefix :, place.num_prefix :]
        index = self._index(place, weights).expand(*patches.shape[:2], -1, -1)
        sums = patches.new_zeros(*patches.shape[:3], len(self.value_table))
        sums = sums.scatter_add(-1, index, patches) @ self.value_table.to(weights.dtype)
        return F.pad(sums, (0, 0, place.num_prefix, 0))

    def _index(self, place: Place, like: Tensor) -> Int[Tensor, "n n"]:
        rows, columns = differences(place, like.device)
        return (-(rows * place.columns + columns)).clamp(-self.k, self.k) + self.k


class ShawAttention(Biased):
    """Attention whose values also have embeddings; the weights are formed for it."""

    rel_pos: Shaw  # pyright: ignore[reportIncompatibleVariableOverride]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.mT + self.bias(q, place)
        weights = scores.softmax(-1)
        return weights.to(v.dtype) @ v + self.rel_pos.value_sums(weights.to(v.dtype), place)

    def value_products(self, x: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        """Products of x_i with the embeddings of values a^V_ij, `b heads m m`."""
        return self.rel_pos.value_products(x, place)


class BiasTable(Resampled):
    """A learned bias of the scores for each 2-D offset and head.

    In timm's layout (`RelPosBias`; Swin, arXiv:2103.14030, equation 4; BEiT, arXiv:2106.08254):
    rows of q - k, row by row, then those from a prefix token to patches, from patches to prefix
    tokens, and between prefix tokens. Cost: no products; it reads heads m^2 numbers.
    """

    def __init__(self, config: ViTConfig, options: Sized) -> None:
        super().__init__(config, options)
        rows, columns = all_offsets(*self.size)
        entries = rows * columns + (3 if config.num_prefix_tokens else 0)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(entries, config.num_heads))

    def forward(self, q: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        old, new = all_offsets(*self.size), all_offsets(place.rows, place.columns)
        patches, others = self.relative_position_bias_table.tensor_split([old[0] * old[1]])
        patches = resize_grid(patches[None], old, new, self.rule)[0]
        index, p = offset_index(place, q.device), place.num_prefix
        if p:
            index = F.pad(index, (p, 0, p, 0), value=len(patches))
            index[p:, :p], index[:p, :p] = len(patches) + 1, len(patches) + 2
        return torch.cat([patches, others])[index].permute(2, 0, 1)[None]


class Alibi(Tables):
    """Minus slope times Euclidean distance in patches, added to the scores; nothing is learned.

    ALiBi (arXiv:2108.12409), with its slopes of the heads, in two axes as in CROMA
    (arXiv:2311.00566, section 3.2); 0 for pairs with a prefix token. Cost: no products; it reads
    heads m^2 numbers.
    """

    def forward(self, q: Float[Tensor, "b heads m e"], place: Place) -> Tensor:
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows, columns = (offset.to(dtype) for offset in differences(place, q.device))
        slopes = torch.tensor(_slopes(q.shape[1]), dtype=dtype, device=q.device)
        bias = -slopes[:, None, None] * (rows.square() + columns.square()).sqrt()
        return F.pad(bias, (place.num_prefix, 0, place.num_prefix, 0))[None]


def _slopes(heads: int) -> list[float]:
    """Powers of 2^(-8 / heads); between two powers of 2, every other one of the larger follows."""
    lower = 2 ** (heads.bit_length() - 1)
    first = [2.0 ** (-8 * (i + 1) / lower) for i in range(lower)]
    return first + [2.0 ** (-4 * (2 * i + 1) / lower) for i in range(heads - lower)]


def biased(
    kind: type[Tables], attention: type[Biased] = Biased
) -> Callable[[Any, ViTConfig, list[Block]], Placed]:
    """Gives the attention of each layer a bias of this kind; the stem adds nothing."""

    def build(options: Any, config: ViTConfig, layers: list[Block]) -> Placed:
        for layer in layers:
            layer.attn.__class__ = attention
            layer.attn.rel_pos = kind(config, options)
        return NoTable(), True

    return build
