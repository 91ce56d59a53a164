"""Synthesizers: weights between tokens that no pair of tokens has made.

Tay et al. (arXiv:2005.00743). softmax(B) v instead of softmax(q k^T) v, with B `m m` for each head
from each token alone (dense), or learned (random, factorized). Shapes: b batch, m tokens, d width,
heads, e channels per head, k rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.extensions.variants.mixing import OneGrid, SequenceMixer, check_patches
from vit.extensions.variants.options import Grid
from vit.models.config import ViTConfig
from vit.models.encoder import Place
from vit.shapes import Float


class Random(SequenceMixer):
    """B is learned: section 3.2.2, equation 5. Cost: 2 m d^2 + m^2 d multiply-adds."""

    def __init__(self, options: OneGrid, config: ViTConfig, layer: int) -> None:
        super().__init__(config, config.width)
        self.options, self.heads = options, config.num_heads
        self.value = nn.Linear(config.width, config.width)
        self._build_scores(options, config)

    def _build_scores(self, options: Any, config: ViTConfig) -> None:
        tokens = config.num_tokens
        self.score_table = nn.Parameter(torch.zeros(self.heads, tokens, tokens))

    def check_grid(self, grid: Grid) -> None:
        check_patches(self.options, grid)

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        self.check_grid((place.rows, place.columns))
        return super().forward(x, place)

    def mixed(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        values = self.value(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weights = self.scores(x).softmax(-1)
        return (weights @ values).transpose(1, 2).flatten(2)

    def scores(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "*b heads m m"]:
        return self.score_table

    def init_weights(self) -> None:
        """Tables as those of positions."""
        super().init_weights()
        for name, table in self.named_parameters():
            if name.endswith("_table"):
                nn.init.normal_(table, std=0.02)


@dataclass(frozen=True, kw_only=True)
class FactorizedOptions(OneGrid):
    """Options of factorized scores."""

    k: int = 8
    """Rank."""


class Factorized(Random):
    """B = R_1 R_2^T of rank k: section 3.2.4, equation 7.

    Cost: 2 m d^2 + m^2 d multiply-adds, and heads k m^2 once for a batch.
    """

    def _build_scores(self, options: Any, config: ViTConfig) -> None:
        shape = (self.heads, config.num_tokens, options.k)
        self.row_table = nn.Parameter(torch.zeros(shape))
        self.column_table = nn.Parameter(torch.zeros(shape))

    def scores(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "heads m m"]:
        return self.row_table @ self.column_table.mT


class Dense(Random):
    """B_t = W_2 relu(W_1 x_t + b_1) + b_2, `m` for each head: section 3.2.1, equation 4.

    Cost: 3 m d^2 + 2 m^2 d multiply-adds.
    """

    def _build_scores(self, options: Any, config: ViTConfig) -> None:
        self.hidden = nn.Linear(config.width, config.width)
        self.score_weight = nn.Parameter(
            torch.zeros(self.heads, config.num_tokens, config.head_size)
        )
        self.score_bias = nn.Parameter(torch.zeros(self.heads, 1, config.num_tokens))

    def scores(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b heads m m"]:
        hidden = F.relu(self.hidden(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return hidden @ self.score_weight.mT + self.score_bias

    def init_weights(self) -> None:
        super().init_weights()
        for matrix in self.score_weight:
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.score_bias)
