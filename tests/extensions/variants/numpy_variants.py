"""A ViT with parts of every kind in plain NumPy, from the papers' equations.

Independent of the package: no torch, no shared code, double precision, loops over pairs of patches.
Weights are a dict with the keys of our state dict. Images are b c h w; p prefix tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.extensions.formats.numpy_forward import gelu, resized

Array = Any
Weights = dict[str, Array]
Grid = tuple[int, int]


def layer_norm(x: Array, w: Weights, name: str) -> Array:
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * w[f"{name}.weight"] + w[f"{name}.bias"]


def dense(x: Array, w: Weights, name: str) -> Array:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def forward(
    images: Array, w: Weights, kind: type["Part"], patch: int, heads: int, home: Grid
) -> Array:
    """Logits of the mean of the patches, b k. `home`: the grid that the tables are made for."""
    b, _, height, width = images.shape
    grid = (height // patch, width // patch)
    prefix = [w[name][0] for name in ("cls_token", "reg_token") if name in w]
    part = kind(w, grid, home, heads, sum(map(len, prefix)))
    x = part.patches(images) + part.stem()
    x = np.concatenate([*(np.stack([token] * b) for token in prefix), x], axis=1)
    for i in range(part.depth):
        x = part.layer(i, x)
    return dense(layer_norm(x, w, "norm")[:, part.p :].mean(1), w, "head")


class Part:
    """The paper's layers without positions; subclasses replace what a part replaces."""

    depth = 2

    def __init__(self, w: Weights, grid: Grid, home: Grid, heads: int, p: int) -> None:
        self.w, self.grid, self.home, self.heads, self.p = w, grid, home, heads, p
        self.places = [(r, c) for r in range(grid[0]) for c in range(grid[1])]

    def patches(self, images: Array) -> Array:
        """Embedded patches, b n d, of images or of maps that take their place."""
        if "patch_embed.proj.weight" not in self.w:  # maps that are tokens
            return images.reshape(*images.shape[:2], -1).swapaxes(1, 2)
        kernel, (rows, columns) = self.w["patch_embed.proj.weight"], self.grid
        b, c, side = *images.shape[:2], images.shape[2] // rows
        x = images.reshape(b, c, rows, side, columns, side).transpose(0, 2, 4, 1, 3, 5)
        x = x.reshape(b, rows * columns, -1) @ kernel.reshape(len(kernel), -1).T
        return x + self.w["patch_embed.proj.bias"]

    def stem(self) -> Array:
        positions = self.w.get("pos_embed")  # those of the paper, with a slot for the class token
        if positions is None:
            return 0.0
        slots = positions.shape[1] - self.home[0] * self.home[1]
        assert not slots or not positions[:, :slots].any()
        return resized(positions[:, slots:], self.home, self.grid)[0]

    def layer(self, i: int, x: Array) -> Array:
        x = x + self.mixer(i, self.norm(x, f"blocks.{i}.norm1"))
        return x + self.mlp(i, self.norm(x, f"blocks.{i}.norm2"))

    def norm(self, x: Array, name: str) -> Array:
        return layer_norm(x, self.w, name)

    def mlp(self, i: int, x: Array) -> Array:
        return dense(gelu(dense(x, self.w, f"blocks.{i}.mlp.fc1")), self.w, f"blocks.{i}.mlp.fc2")

    def mixer(self, i: int, x: Array) -> Array:
        q, k, v = self.queries_keys_values(i, x)
        weights = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + self.bias(i, q))
        return self.projected(i, weights @ v + self.values(i, weights))

    def queries_keys_values(self, i: int, x: Array) -> Array:
        """Of layer i, 3 b heads m e."""
        qkv = dense(x, self.w, f"blocks.{i}.attn.qkv")
        return qkv.reshape(*x.shape[:2], 3, self.heads, -1).transpose(2, 0, 3, 1, 4)

    def projected(self, i: int, y: Array) -> Array:
        """The heads' outputs b heads m e, side by side, through the last matrix."""
        y = y.transpose(0, 2, 1, 3)
        return dense(y.reshape(*y.shape[:2], -1), self.w, f"blocks.{i}.attn.proj")

    def bias(self, layer: int, q: Array) -> Array:
        return 0.0

    def values(self, layer: int, weights: Array) -> Array:
        return 0.0

    def pairs(self, shape: tuple[int, ...], entry: Callable[[int, int, int, int], Array]) -> Array:
        """`entry(row, column, i, j)` for all patches, with the offset from key j to query i."""
        found = np.zeros((*shape, len(self.places), len(self.places)))
        for i, (row, column) in enumerate(self.places):
            for j, (other_row, other_column) in enumerate(self.places):
                found[..., i, j] = entry(row - other_row, column - other_column, i, j)
        return found


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def added(table: Callable[[Part, str], Array], where: str) -> type[Part]:
    """Positions that are added: `table` from the part and the place of its parameters."""

    class Added(Part):
        def stem(self) -> Array:
            return table(self, "positions") if where == "stem" else 0.0

        def layer(self, i: int, x: Array) -> Array:
            if where != "stem":
                x = x.copy()
                name = f"blocks.{i}.positions" if where == "layers" else "positions.shared"
                x[:, self.p :] += table(self, name)
            return super().layer(i, x)

    return Added


def learned(part: Part, name: str) -> Array:
    return resized(part.w[f"{name}.position_table"], part.home, part.grid)[0]


def learned2d(part: Part, name: str) -> Array:
    rows, columns = part.w[f"{name}.row_table"], part.w[f"{name}.column_table"]
    table = [np.concatenate([x, y]) for y in rows for x in columns]
    return resized(np.stack(table)[None], part.home, part.grid)[0]


def sinusoids(part: Part, name: str) -> Array:
    d = part.w["norm.weight"].size
    table = np.zeros((len(part.places), d))
    for place in range(len(table)):
        for i in range(0, d, 2):
            angle = place / 10_000 ** (i / d)
            table[place, i], table[place, i + 1] = np.sin(angle), np.cos(angle)
    return table.astype(np.float32)  # both packages keep fixed tables so


def sincos2d(part: Part, name: str) -> Array:
    """big_vision, models/vit.py, posemb_sincos_2d."""
    d = part.w["norm.weight"].size // 4
    omega = 1 / 10_000 ** (np.arange(d) / (d - 1))
    waves = [
        [wave(at * omega) for at in (column, row) for wave in (np.sin, np.cos)]
        for row, column in part.places
    ]
    return np.array(waves).reshape(len(part.places), -1).astype(np.float32)


class Relative(Part):
    """ViT, appendix D.4: queries times the embeddings of offsets in raster order."""

    def bias(self, layer: int, q: Array) -> Array:
        p = self.p
        flat = self.w[f"blocks.{layer}.attn.rel_pos.offset_table"]
        rows, columns = self.home
        table = np.array(
            [
                [flat[r * columns + c + rows * columns - 1] for c in range(1 - columns, columns)]
                for r in range(1 - rows, rows)
            ]
        )
        old, new = table.shape[:2], (2 * self.grid[0] - 1, 2 * self.grid[1] - 1)
        table = resized(table.reshape(1, old[0] * old[1], -1), old, new).reshape(*new, -1)
        if self.grid == self.home:  # 1-D: what rows and columns mean together

            def of(r: int, c: int) -> Array:
                return flat[r * columns + c + rows * columns - 1]
        else:

            def of(r: int, c: int) -> Array:
                return table[r + self.grid[0] - 1, c + self.grid[1] - 1]

        b, heads, m, e = q.shape
        scores = np.zeros((b, heads, m, m))
        scores[..., p:, p:] = self.pairs(
            (b, heads),
            lambda r, c, i, j: (q[:, :, p + i] * of(r, c).reshape(heads, e)).sum(-1) / np.sqrt(e),
        )
        return scores


class Shaw(Part):
    """arXiv:1803.02155, equations 3 and 4, with k from the tables' length."""

    def offset(self, i: int, j: int, table: Array) -> Array:
        k = len(table) // 2
        return table[max(-k, min(j - i, k)) + k]

    def bias(self, layer: int, q: Array) -> Array:
        p = self.p
        table = self.w[f"blocks.{layer}.attn.rel_pos.key_table"]
        scores = np.zeros((*q.shape[:3], q.shape[2]))
        scores[..., p:, p:] = self.pairs(
            q.shape[:2],
            lambda r, c, i, j: q[:, :, p + i] @ self.offset(i, j, table) / np.sqrt(q.shape[-1]),
        )
        return scores

    def values(self, layer: int, weights: Array) -> Array:
        p = self.p
        table = self.w[f"blocks.{layer}.attn.rel_pos.value_table"]
        sums = np.zeros((*weights.shape[:3], table.shape[1]))
        for i in range(len(self.places)):
            for j in range(len(self.places)):
                entry = self.offset(i, j, table)
                sums[:, :, p + i] += weights[:, :, p + i, p + j, None] * entry
        return sums


class BiasTable(Part):
    """BEiT's layout: all offsets row by row, then prefix to patch, patch to prefix, the rest."""

    def bias(self, layer: int, q: Array) -> Array:
        p = self.p
        table = self.w[f"blocks.{layer}.attn.rel_pos.relative_position_bias_table"]
        (r0, c0), (r1, c1) = ((2 * g[0] - 1, 2 * g[1] - 1) for g in (self.home, self.grid))
        patches = resized(table[None, : r0 * c0], (r0, c0), (r1, c1)).reshape(r1, c1, -1)
        bias = np.zeros((q.shape[1], q.shape[2], q.shape[2]))
        bias[:, p:, p:] = self.pairs(
            (q.shape[1],), lambda r, c, i, j: patches[r + self.grid[0] - 1, c + self.grid[1] - 1]
        )
        if p:
            to_patches, to_prefix, between = table[r0 * c0 :, :, None, None]
            bias[:, :p, p:], bias[:, p:, :p], bias[:, :p, :p] = to_patches, to_prefix, between
        return bias


class Alibi(Part):
    """arXiv:2108.12409, section 3, with the Euclidean distance; a power of 2 heads."""

    def bias(self, layer: int, q: Array) -> Array:
        p = self.p
        bias = np.zeros((q.shape[1], q.shape[2], q.shape[2]))
        slopes = np.array([2.0 ** (-8 * (h + 1) / q.shape[1]) for h in range(q.shape[1])])
        bias[:, p:, p:] = self.pairs((q.shape[1],), lambda r, c, i, j: -slopes * np.hypot(r, c))
        return bias
