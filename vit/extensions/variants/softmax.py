"""Attention of all tokens to all tokens, or to a few sums of them.

Shapes: b batch, m tokens, k sums, heads, e channels per head, a = heads e (d, unless chosen).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.additive import Tables
from vit.extensions.variants.attending import Attending, Biased
from vit.extensions.variants.mixing import (
    AttentionMixer,
    OneGrid,
    SequenceMixer,
    check_patches,
    check_pooled,
)
from vit.extensions.variants.options import Grid, Options
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Place
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class SoftmaxOptions(Options):
    """Options of softmax attention."""

    head_size: int | None = None
    """Channels of a head; default: width / heads, as in the paper."""
    causal: bool = False
    """A token sees those before it in the sequence, and itself."""


class Causal(Tables):
    """Bias that hides later keys."""

    def forward(
        self, q: Float[Tensor, "b heads m e"], place: Place
    ) -> Float[Tensor, "1 heads m m"]:
        _, heads, m, _ = q.shape
        return q.new_full((m, m), -torch.inf).triu(1).expand(1, heads, m, m)


def softmax(options: SoftmaxOptions, config: ViTConfig, layers: list[Block]) -> None:
    """softmax(q k^T / sqrt(e)) v, the paper's attention (arXiv:1706.03762, equation 1).

    Cost: 4 m d a multiply-adds for queries, keys, values and output, 2 m^2 a for the weights;
    causal: no fewer.
    """
    if options.head_size is not None:
        if config.rotary is not None and options.head_size != config.head_size:
            raise UserError(
                f"head_size={options.head_size} is not for rotary positions, which turn heads of "
                f"{config.head_size} channels"
            )
        inner = options.head_size * config.num_heads
        for layer in layers:
            layer.attn.qkv = nn.Linear(config.width, 3 * inner)
            layer.attn.proj = nn.Linear(inner, config.width)
    if options.causal:
        check_pooled(config)
        for layer in layers:
            layer.attn.__class__ = Biased
            layer.attn.rel_pos = Causal(config, options)


@dataclass(frozen=True, kw_only=True)
class DotProductOptions(Options):
    """Options of attention without the paper's scale."""

    projected: bool = True
    """Queries, keys and values are projections of the tokens, in heads; else the tokens."""


class Unscaled(Attending):
    """softmax(q k^T) v. Of independent components of mean 0 and variance 1 the scores have the
    variance e, by which the softmax saturates (arXiv:1706.03762, section 3.2.1, footnote 4)."""

    scaled = False
    """For maps, which are of scores over sqrt(e) elsewhere."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        return super().attend(q * q.shape[-1] ** 0.5, k, v, place)


class Tokens(SequenceMixer):
    """softmax(x x^T) x, without parameters and heads."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config, None)

    def mixed(self, x: Float[Tensor, "b m d"]) -> Float[Tensor, "b m d"]:
        return F.scaled_dot_product_attention(x, x, x, scale=1.0)


def dot_product(options: DotProductOptions, config: ViTConfig, layers: list[Block]) -> None:
    """Attention in the stages that lead to the paper's: of the tokens themselves, then of their
    projections, and not yet scaled.

    Cost: that of `softmax`; not projected: 2 m^2 d multiply-adds alone.
    """
    for layer in layers:
        if options.projected:
            layer.attn.__class__ = Unscaled
        else:
            layer.add_module("attn", Tokens(config))


@dataclass(frozen=True, kw_only=True)
class LinformerOptions(OneGrid):
    """Options of Linformer."""

    k: int = 16
    """Keys and values that are made of those of all tokens."""
    shared: bool = False
    """One matrix for keys and values (section 4, "key-value sharing")."""


class Linformer(AttentionMixer):
    """softmax(q (E k)^T / sqrt(e)) (F v), with learned E and F, `k m`, the same for all heads.

    Linformer (arXiv:2006.04768, equation 7, "headwise sharing"). Cost: 4 m d^2 multiply-adds for
    queries, keys, values and output, 2 k m d for E k and F v, 2 k m d for the weights.
    """

    def __init__(self, options: LinformerOptions, config: ViTConfig, layer: int) -> None:
        super().__init__(options, config, layer)
        tokens = config.num_tokens
        if options.k > tokens:
            raise UserError(f"k={options.k} is more than the {tokens} tokens of this model")
        self.options = options
        self.key_sums = nn.Parameter(torch.zeros(options.k, tokens))
        self.value_sums = None if options.shared else nn.Parameter(torch.zeros(options.k, tokens))

    def check_grid(self, grid: Grid) -> None:
        check_patches(self.options, grid)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, place: Place) -> Float[Tensor, "b heads m e"]:
        self.check_grid((place.rows, place.columns))
        value_sums = self.key_sums if self.value_sums is None else self.value_sums
        return F.scaled_dot_product_attention(q, self.key_sums @ k, value_sums @ v)

    def init_weights(self) -> None:
        """Sums as in the paper's proof: normal of variance 1 / k."""
        super().init_weights()
        for sums in (self.key_sums, self.value_sums):
            if sums is not None:
                nn.init.normal_(sums, std=len(sums) ** -0.5)
