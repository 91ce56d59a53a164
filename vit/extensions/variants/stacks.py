"""Layers that are the same one, and layers on smaller and smaller grids.

Shapes: b batch, p prefix tokens, n = rows x columns patches, m = p + n tokens, d width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.extensions.variants.experts import Experts
from vit.extensions.variants.options import Grid, Options
from vit.models.config import ViTConfig
from vit.models.encoder import Block, Place
from vit.shapes import Float


class Again(nn.Module):
    """The first layer once more.

    ALBERT (arXiv:1909.11942, section 3.1): all layers share all parameters. Cost: as many
    operations as without, and 1 / depth of the layers' parameters.
    """

    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first = (first,)  # in a tuple, as it is no part of this one

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        return self.first[0](x, place)

    def init_weights(self) -> None:
        """Leaves the weights of the first layer to it."""


def shared(options: Options, config: ViTConfig, layers: list[Block]) -> None:
    """Repeats one layer. UserError for one that depends on the depth."""
    if config.drop_path:
        raise UserError(
            f"variant.stack, shared: drop_path={config.drop_path} is of each layer, and there is "
            "one: set drop_path=0"
        )
    if any(getattr(layer.attn, "by_layer", False) for layer in layers):
        raise UserError(
            "variant.stack, shared: this mixer differs from layer to layer, and there is one: set "
            "shift: false for windows, or axes: both for axial attention"
        )
    if any(isinstance(layer.mlp, Experts) for layer in layers):
        raise UserError(
            "variant.stack, shared: the balance loss of experts is of each layer, and there is "
            "one: leave out variant.mlp=experts"
        )
    layers[1:] = [Again(layers[0]) for _ in layers[1:]]  # pyright: ignore


@dataclass(frozen=True, kw_only=True)
class FunnelOptions(Options):
    """Options of a funnel."""

    stages: int = 2
    """Groups of layers of about the same number; each after the first halves rows and columns."""


class Smaller(nn.Module):
    """A layer on a grid whose sides are divided by `stride`.

    Funnel-Transformer (arXiv:2006.03236, section 2.2): between two stages, patches are the means of
    2 x 2; prefix tokens stay. There, the first layer after it still has the keys and values of all
    patches. Cost: layers with m = p + n / stride^2 tokens.
    """

    def __init__(self, layer: nn.Module, stride: int, patch_size: int, *, pools: bool) -> None:
        super().__init__()
        self.layer, self.stride, self.patch_size, self.pools = layer, stride, patch_size, pools

    def forward(self, x: Float[Tensor, "b m d"], place: Place) -> Float[Tensor, "b m d"]:
        grid = rows, columns = divided((place.rows, place.columns), self.stride, self.patch_size)
        if self.pools:
            prefix, patches = x.tensor_split([place.num_prefix], dim=1)
            parts = patches.unflatten(1, (rows, 2, columns, 2))
            x = torch.cat([prefix, parts.mean((2, 4)).flatten(1, 2)], dim=1)
        return self.layer(x, Place(*grid, place.num_prefix))

    def init_weights(self) -> None:
        self.layer.init_weights()  # pyright: ignore[reportCallIssue]


def divided(grid: Grid, stride: int, patch_size: int) -> Grid:
    """UserError for a grid that `stride` does not divide."""
    if grid[0] % stride or grid[1] % stride:
        raise UserError(
            f"variant.stack, funnel: a grid of {grid[0]}x{grid[1]} patches cannot be divided by "
            f"{stride}; choose images whose sides are multiples of {stride * patch_size} pixels"
        )
    return grid[0] // stride, grid[1] // stride


def funnel(options: FunnelOptions, config: ViTConfig, layers: list[Block]) -> None:
    """Layers in stages. UserError for more stages than layers, and for a grid they do not fit."""
    if options.stages > len(layers):
        raise UserError(
            f"variant.stack, funnel: stages={options.stages} are more than the depth, {len(layers)}"
        )
    if config.rotary is not None:
        raise UserError(
            "variant.stack, funnel: rotary positions are of the whole grid: leave out one"
        )
    divided(config.grid, 2 ** (options.stages - 1), config.patch_size)
    stages = [i * options.stages // len(layers) for i in range(len(layers))]
    for i, stage in enumerate(stages):
        if stage:
            check_grid = getattr(layers[i].attn, "check_grid", None)
            if check_grid is not None:
                check_grid(divided(config.grid, 2**stage, config.patch_size))
            pools = stage > stages[i - 1]
            smaller = Smaller(layers[i], 2**stage, config.patch_size, pools=pools)
            layers[i] = smaller  # pyright: ignore
