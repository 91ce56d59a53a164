"""Attention pooling with one learned query. Shapes: b batch, n tokens, d width."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.config import Activation
from vit.models.encoder import Mlp
from vit.models.initialization import mlp_, probe_, xavier_
from vit.shapes import Float


class AttentionPool(nn.Module):
    """Multihead attention pooling, "MAP" (arXiv:2106.04560, section 3.4; big_vision, MAPHead): a
    learned query attends to the tokens; a residual MLP follows."""

    def __init__(
        self, width: int, num_heads: int, mlp_dim: int, norm: nn.Module, activation: Activation
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.zeros(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.norm = norm
        self.mlp = Mlp(width, mlp_dim, activation)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        probe = self.latent.to(x.dtype).expand(x.shape[0], -1, -1)
        q = self.q(probe).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # b heads 1 e
        kv = self.kv(x).unflatten(-1, (2, self.num_heads, -1))  # b n 2 heads e
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        y = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(1))
        return y + self.mlp(self.norm(y))

    def init_weights(self) -> None:
        """Follows big_vision's MAPHead, where queries, keys and values are separate matrices."""
        probe_(self.latent)
        xavier_(self.q)
        xavier_(self.kv, matrices=2)
        xavier_(self.proj)
        mlp_(self.mlp.fc1, self.mlp.fc2)
