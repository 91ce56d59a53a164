"""DINOv2's head: from a token to logits of prototypes. Shapes: d width, k prototypes."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.shapes import Float

STD = 0.02
"""Of the weights at the start, a normal distribution cut off at 2."""


class PrototypeHead(nn.Module):
    """Three layers, and cosines with prototypes (dinov2/layers/dino_head.py).

    Args:
        width: Of the tokens.
        prototypes: Logits.
        hidden: Width of the two layers inside.
        bottleneck: Width in which prototypes are directions.
    """

    def __init__(
        self, width: int, prototypes: int, *, hidden: int = 2048, bottleneck: int = 256
    ) -> None:
        super().__init__()
        sizes = (width, hidden, hidden, bottleneck)
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.mlp = nn.Sequential(layers[0], nn.GELU(), layers[1], nn.GELU(), layers[2])
        self.last = Prototypes(bottleneck, prototypes)
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=STD)
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows k"]:
        return self.last(F.normalize(self.mlp(tokens), dim=-1))


class Prototypes(nn.Module):
    """A linear layer without bias whose rows have length 1: weight normalisation with g fixed."""

    def __init__(self, width: int, prototypes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(prototypes, width), std=STD))

    def forward(self, x: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows k"]:
        return F.linear(x, F.normalize(self.weight, dim=-1))
