"""Layers of EVA-02 (arXiv:2303.11331): norms inside attention and MLP, or after both.

Source: timm 1.0.31, models/eva.py and layers/mlp.py. Shapes: b batch, n tokens, d width.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from vit.models.attention import attend
from vit.models.encoder import Attention, Block, Mlp, Place, rotated
from vit.shapes import Float


class NormedAttention(Attention):
    """Attention with a norm before its last matrix."""

    norm: nn.LayerNorm

    @override
    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))  # b n 3 heads e
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = attend(rotated(q, place), rotated(k, place), v, place.bias)
        return self.drop(self.proj(self.norm(y.transpose(1, 2).flatten(2))))


class NormedMlp(Mlp):
    """A gated MLP with a norm before its last matrix."""

    norm: nn.LayerNorm

    @override
    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.drop(self.fc2(self.norm(self.drop(F.silu(gate) * value))))


class PostNormBlock(Block):
    """A layer whose norms end its branches, in place of beginning them."""

    @override
    def forward(self, x: Float[Tensor, "b n d"], place: Place) -> Float[Tensor, "b n d"]:
        x = x + self.drop_path1(self.ls1(self.norm1(self.attn(x, place))))
        return x + self.drop_path2(self.ls2(self.norm2(self.mlp(x))))
