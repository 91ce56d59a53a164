"""Transformer encoder layers.

Shapes: b batch, n tokens, d width, heads, e = d / heads; where n counts patches, m all tokens.
Pre-norm residual blocks as in ViT (arXiv:2010.11929, section 3.1, eqs. 2-3). LayerScale follows
CaiT (arXiv:2103.17239); DropPath drops whole residual branches per image (arXiv:1603.09382).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.attention import attend
from vit.models.config import Activation, gated_width
from vit.models.initialization import mlp_, xavier_
from vit.shapes import Float


class Rotation(NamedTuple):
    """Angles by which every layer turns the queries and keys of the patches: `n 1 e`, or
    `b m 1 e` where images differ in the patches that take part."""

    cos: Float[Tensor, "*b n 1 e"]
    sin: Float[Tensor, "*b n 1 e"]


class Place(NamedTuple):
    """Places of a layer's tokens: prefix tokens, then a grid of patches row by row."""

    rows: int
    columns: int
    num_prefix: int
    rotation: Rotation | None = None
    bias: Float[Tensor, "b 1 m m"] | None = None
    """Added to the scores of every layer; -inf hides a key (last index) from a query."""


def rotated(x: Float[Tensor, "b heads m e"], place: Place) -> Float[Tensor, "b heads m e"]:
    """Queries or keys with the patches turned by the rotation, if any.

    In the dtype of `x`; computed in the table's.

    Channels i and i + e / 2 turn together. In memory a token's heads stay side by side, so that the
    output of attention needs no copy.
    """
    if place.rotation is None:
        return x
    prefix, patches = x.transpose(1, 2).tensor_split([place.num_prefix], dim=1)  # b n heads e
    first, second = patches.chunk(2, dim=-1)
    across = torch.cat([-second, first], dim=-1)
    turned = (patches * place.rotation.cos + across * place.rotation.sin).to(x.dtype)
    if place.num_prefix:
        turned = torch.cat([prefix, turned], dim=1)
    return turned.transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with a joint matrix for queries, keys and values (appendix A).

    Dropout follows the output projection; the published models never drop attention weights.
    """

    def __init__(self, width: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # b n 3 heads e
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # b heads n e
        y = attend(rotated(q, place), rotated(k, place), v, place.bias)
        return self.drop(self.proj(y.transpose(1, 2).flatten(2)))

    def init_weights(self) -> None:
        """Follows the official code, where queries, keys and values are separate matrices."""
        xavier_(self.qkv, matrices=3)
        xavier_(self.proj)


class Mlp(nn.Module):
    """Two linear layers with a GELU between them; dropout follows both (appendix B.1).

    With "quick_gelu" it is x sigmoid(1.702 x), as in OpenAI's CLIP. With "swiglu", fc1 computes
    gate and value, and SiLU(gate) * value replaces the GELU (arXiv:2002.05202, section 2).
    """

    def __init__(
        self, width: int, mlp_dim: int, activation: Activation, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.fc1 = nn.Linear(width, gated_width(mlp_dim, activation))
        self.fc2 = nn.Linear(mlp_dim, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        if self.activation == "swiglu":
            gate, value = self.fc1(x).chunk(2, dim=-1)
            x = F.silu(gate) * value
        elif self.activation == "quick_gelu":
            x = self.fc1(x)
            x = x * torch.sigmoid(1.702 * x)
        else:
            approximate = "tanh" if self.activation == "gelu_tanh" else "none"
            x = F.gelu(self.fc1(x), approximate=approximate)
        return self.drop(self.fc2(self.drop(x)))

    def init_weights(self) -> None:
        """Follows the official code."""
        mlp_(self.fc1, self.fc2)


class LayerScale(nn.Module):
    """Learned factor per channel on a residual branch, initialized to `initial`."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), initial))

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        return x * self.gamma


class DropPath(nn.Module):
    """Drops a residual branch per image with probability `rate` and rescales the others."""

    draws: Tensor | None
    """`b`, numbers in [0, 1) that decide for the images of the next batch; None: torch's own."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.draws = None

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        if not self.training:
            return x
        keep = 1 - self.rate
        if self.draws is None:
            mask = x.new_empty(x.shape[0], 1, 1).bernoulli_(keep)
        else:
            mask = (self.draws < keep).to(x.dtype)[:, None, None]
        return x * (mask / keep)


class Block(nn.Module):
    """Encoder layer: the paper's equations 2 and 3."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        mlp_dim: int,
        norm: Callable[[int], nn.Module],
        activation: Activation,
        dropout: float,
        drop_path: float,
        layer_scale: float | None,
    ) -> None:
        super().__init__()

        def branch_end() -> list[nn.Module]:
            scale = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
            return [scale, DropPath(drop_path) if drop_path > 0 else nn.Identity()]

        self.norm1 = norm(width)
        self.attn = Attention(width, num_heads, dropout)
        self.ls1, self.drop_path1 = branch_end()
        self.norm2 = norm(width)
        self.mlp = Mlp(width, mlp_dim, activation, dropout)
        self.ls2, self.drop_path2 = branch_end()

    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), place)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))

    def init_weights(self) -> None:
        self.attn.init_weights()
        self.mlp.init_weights()
