"""The MLP of a layer with another activation, with a gate, or none.

Shapes: d width, m `mlp_dim`, n tokens. W and V are matrices with biases.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.extensions.variants.options import Change, Options
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Mlp
from vit.shapes import Float

Function = Callable[[Tensor], Tensor]


class Activated(Mlp):
    """W2 f(W1 x), as in the paper with another f (arXiv:2102.11972, section 2.1).

    GELU (arXiv:1606.08415), Swish x sigmoid(x) (1710.05941), ELU (1511.07289), SELU (1706.02515),
    ReLU, sigmoid and softplus. Cost: that of the paper's MLP.
    """

    def __init__(self, config: ViTConfig, function: Function) -> None:
        super().__init__(config.width, config.mlp_dim, "gelu", config.dropout)
        self.function = function

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.drop(self.fc2(self.drop(self.function(self.fc1(x)))))


class Gated(Mlp):
    """W2 (f(W x) * (V x)), with W and V side by side in fc1 (arXiv:2002.05202, section 2).

    f is a sigmoid in GLU, GELU in GEGLU, ReLU in ReGLU, Swish in SwiGLU, and nothing in LiGLU. The
    hidden size is two thirds of `mlp_dim`, so that the cost is that of the paper's MLP.
    """

    def __init__(self, config: ViTConfig, function: Function) -> None:
        super().__init__(config.width, two_thirds(config.mlp_dim), "swiglu", config.dropout)
        self.function = function

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.drop(self.fc2(self.drop(self.function(gate) * value)))


def two_thirds(mlp_dim: int) -> int:
    """The hidden size at which three matrices have the size of two, rounded."""
    return max(round(2 * mlp_dim / 3), 1)


class NoMlp(nn.Module):
    """Adds nothing. It saves 2 n d m of a layer's operations."""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return torch.zeros_like(x)

    def init_weights(self) -> None:
        """Nothing to draw."""


def unchanged(x: Tensor) -> Tensor:
    """x."""
    return x


FEEDFORWARDS: dict[str, tuple[type[Activated | Gated], Function]] = {
    "relu": (Activated, F.relu),
    "gelu": (Activated, F.gelu),
    "swish": (Activated, F.silu),
    "elu": (Activated, F.elu),
    "selu": (Activated, F.selu),
    "sigmoid": (Activated, torch.sigmoid),
    "softplus": (Activated, F.softplus),
    "glu": (Gated, torch.sigmoid),
    "geglu": (Gated, F.gelu),
    "reglu": (Gated, F.relu),
    "swiglu": (Gated, F.silu),
    "liglu": (Gated, unchanged),
}
"""MLPs by name: their class and f."""


def feedforward(name: str) -> Change:
    """Builds MLPs of FEEDFORWARDS."""
    kind, function = FEEDFORWARDS[name]

    def build(options: Options, config: ViTConfig, layers: list[Block]) -> None:
        for layer in layers:
            layer.mlp = kind(config, function)

    return build


def without_mlp(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """Layers of attention alone."""
    for layer in layers:
        layer.register_module("mlp", NoMlp())
        layer.register_module("norm2", nn.Identity())
        layer.register_module("ls2", nn.Identity())
