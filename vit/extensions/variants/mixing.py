"""Common parts of mixers. A mixer takes the place of attention in every layer: `attn` of a Block.

Prefix tokens (class token, registers) are treated alike everywhere. In attention on the grid
(window, axial) they see all tokens, and every patch sees them beside its own neighbours; so they do
in BigBird, whose first block is global. The other mixers see one sequence: prefix tokens first,
then the patches row by row. Shapes: b batch, m tokens, d width, heads, e channels per head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.attending import Attending
from vit.extensions.variants.options import Change, Grid, Options, Sized
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Place
from vit.models.initialization import xavier_
from vit.shapes import Float


@dataclass(frozen=True, kw_only=True)
class OneGrid(Sized):
    """Options of mixers that have weights for each token: `size` is the grid of the model, which is
    written down, and another number of patches is refused."""


def check_patches(options: OneGrid, grid: Grid) -> None:
    """UserError for another grid than `size`."""
    if grid != options.size:
        rows, columns = cast(Grid, options.size)
        raise UserError(
            f"this mixer has weights for each token of {rows} x {columns} patches, and cannot read "
            f"{grid[0]} x {grid[1]}: keep the grid, or choose another mixer"
        )


def check_pooled(config: ViTConfig) -> None:
    """UserError if the image is pooled from the class token, where tokens see only earlier ones."""
    if config.pool in ("cls", "cls_gap"):
        raise UserError(
            "the class token comes first and would see no patch: set model.architecture "
            "{class_token: false, pool: gap}"
        )


class AttentionMixer(Attending):
    """Attention of each query to some keys, or to sums of them: subclasses `attend`.

    A mixer may have `by_layer`, true if it differs from layer to layer, and `check_grid`, which
    raises UserError for a grid that it cannot read.
    """

    ignores_mask = True

    def __init__(self, options: Options, config: ViTConfig, layer: int) -> None:
        super().__init__(config.width, config.num_heads, config.dropout)

    def bias(self, q: Tensor, place: Place) -> Tensor | None:
        raise UserError("this model's mixer has no attention weights of all pairs of tokens")


class SequenceMixer(nn.Module):
    """A mixer without queries and keys. Subclasses have `mixed`: from tokens to what `proj` reads,
    `b m inner`. Without `inner` the channels are mixed already, and there is no `proj`."""

    mixed: Callable[[Float[Tensor, "b m d"]], Tensor]
    ignores_mask = True

    def __init__(self, config: ViTConfig, inner: int | None) -> None:
        super().__init__()
        if config.rotary is not None:
            raise UserError(
                "rotary positions turn queries and keys, which this mixer does not have: leave "
                "rotary out"
            )
        self.proj = nn.Identity() if inner is None else nn.Linear(inner, config.width)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        return self.drop(self.proj(self.mixed(x)))

    def init_weights(self) -> None:
        """Xavier uniform matrices with zero biases, as in attention."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                xavier_(part)


def mixed(kind: Callable[[Any, ViTConfig, int], nn.Module]) -> Change:
    """Puts a mixer, made of options, configuration and the layer's index, in each layer."""

    def build(options: Options, config: ViTConfig, layers: list[Block]) -> None:
        if isinstance(options, OneGrid):
            check_patches(options, config.grid)
        for i, layer in enumerate(layers):
            layer.add_module("attn", kind(options, config, i))

    return build
