"""Default initializations of Flax, which the official code uses."""

import math
from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def lecun_normal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Flax's default: normal of variance 1 / fan_in, truncated at two deviations; zero bias."""
    # Standard deviation of a unit normal truncated at +-2; the draw compensates for it.
    std = layer.weight[0].numel() ** -0.5 / 0.87962566103423978
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def xavier_(layer: nn.Linear, matrices: int = 1) -> None:
    """Xavier uniform with zero bias; the fans are those of each of the stacked `matrices`."""
    for matrix in layer.weight.chunk(matrices):
        nn.init.xavier_uniform_(matrix)
    nn.init.zeros_(layer.bias)


def mlp_(fc1: nn.Linear, fc2: nn.Linear) -> None:
    """Xavier uniform with biases from N(0, 1e-6), as in the official MLP block."""
    for layer in (fc1, fc2):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.normal_(layer.bias, std=1e-6)


def probe_(token: nn.Parameter) -> None:
    """Xavier uniform of the shape (1, 1, d), whose fans are 1 and d."""
    bound = math.sqrt(6 / (1 + token.shape[-1]))
    nn.init.uniform_(token, -bound, bound)


def zero_(layer: Layer) -> Layer:
    """The head with zero output, so that fine-tuning starts without noise (section 3.2)."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer
