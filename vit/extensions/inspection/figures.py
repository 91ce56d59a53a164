"""Overlays, and figures in the manner of the ViT paper's.

Shapes: c channels, s pixels on a patch's side, gh gw rows and columns of patches.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image
from torch import Tensor

from vit.errors import shorten
from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, style_axes, tiled
from vit.extensions.reports.lettering import legible, text_style

MOST = 0.8
"""Share of the heat map's colour in an overlay where the map is largest."""
GREYS = (70, 215)
"""The darkest and the lightest grey of the photo below it."""
POSITIONS_SHOWN = 7
"""Rows and columns of the position figure, as in the paper's Figure 7."""


def overlay(photo: Image.Image, values: Tensor) -> Image.Image:
    """The photo in grey below a heat map `gh gw`, the less transparent the larger the value.

    All colour is the map's. It is interpolated, and stretched to its 99th percentile: one patch
    with most of the attention does not hide the others.
    """
    scaled = values.float().cpu()
    low, high = scaled.min(), scaled.quantile(0.99)
    scaled = ((scaled - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    small = Image.fromarray((scaled * 255).round().byte().numpy())
    mask = np.asarray(small.resize(photo.size, Image.Resampling.BICUBIC), dtype=np.float32) / 255
    heat = 255 * colormaps["inferno"](mask)[..., :3]
    grey = np.interp(np.asarray(photo.convert("L")), (0, 255), GREYS)[..., None]
    share = MOST * mask[..., None]
    blended = grey * (1 - share) + heat * share
    return Image.fromarray(blended.round().astype(np.uint8))


def colours(values: Tensor, size: tuple[int, int]) -> Image.Image:
    """RGB values in [0, 1] `gh gw 3` as an image of (width, height) pixels, patches as squares."""
    small = Image.fromarray((values.float().cpu() * 255).round().byte().numpy())
    return small.resize(size, Image.Resampling.NEAREST)


def filters(values: Tensor) -> Figure:
    """RGB filters `count c s s` in rows of seven, each scaled to its own range about grey."""
    largest = values.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-12)
    shown = (0.5 + values.float() / (2 * largest)).permute(0, 2, 3, 1).cpu().numpy()
    rows = -(-len(shown) // 7)
    blank = np.zeros((rows * 7 - len(shown), *shown.shape[1:]), shown.dtype)
    tiles = np.concatenate([shown, blank + 1]).reshape(rows, 7, *shown.shape[1:])
    figure = new_figure(5.6, 0.8 * rows, dpi=110)
    _mosaic(figure.add_subplot(), tiles)
    return figure


def positions(similarity: Tensor) -> Figure:
    """Cosine similarity `gh gw gh gw` of evenly spaced positions to all positions."""
    gh, gw = similarity.shape[:2]
    ys, xs = (
        np.unique(np.linspace(0, side - 1, min(side, POSITIONS_SHOWN)).round().astype(int))
        for side in (gh, gw)
    )
    tiles = similarity.float().cpu().numpy()[np.ix_(ys, xs)]
    figure = new_figure(0.65 * len(xs) + 1.2, 0.65 * len(ys) * gh / gw + 0.5, dpi=110)
    axes = figure.add_subplot()
    picture = _mosaic(axes, colormaps["viridis"]((tiles + 1) / 2)[..., :3])
    picture.set(cmap="viridis", clim=(-1, 1))  # for the bar
    _tick(axes, [str(y + 1) for y in ys], [str(x + 1) for x in xs], tiles.shape[2:])
    label_axes(axes, x="column of the patch", y="row of the patch")
    bar = figure.colorbar(picture, ax=axes, shrink=0.8)
    bar.set_label("cosine similarity", color=LIGHT.muted, fontsize=9)
    bar.ax.tick_params(colors=LIGHT.muted, labelsize=7, length=0)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def by_depth(values: Tensor, label: str, title: str) -> Figure:
    """Dots, one per head, over the depth of the layer (Figures 7 right and 11), `layers heads`."""
    figure = new_figure(4.8, 3.2)
    axes = figure.add_subplot()
    style_axes(axes)
    heads = values.float().cpu().numpy()
    for head in range(heads.shape[1]):
        axes.plot(range(len(heads)), heads[:, head], "o", markersize=4, alpha=0.75)
    axes.set_ylim(bottom=0)
    axes.set_title(title, color=LIGHT.ink, fontsize=9)
    label_axes(axes, x="layer", y=label)
    return figure


def overview(pictures: Sequence[tuple[str, Image.Image]], title: str) -> Figure:
    """Pictures of one photo side by side, below their names."""
    wide, high = pictures[0][1].size
    figure = new_figure(2 * len(pictures), 2 * high / wide + 0.55, dpi=120)
    for axes, (name, picture) in zip(
        figure.subplots(1, len(pictures), squeeze=False).flat, pictures, strict=True
    ):
        axes.set_axis_off()
        axes.imshow(np.asarray(picture), interpolation="antialiased")
        axes.set_title(shorten(legible(name), 30), color=LIGHT.muted, **text_style(8))
    figure.suptitle(shorten(legible(title), 60), color=LIGHT.ink, **text_style(9))
    return figure


def head_maps(maps: Tensor, layers: Sequence[int], heads: Sequence[int]) -> Figure:
    """Maps `layers heads gh gw`, a row per layer and a column per head; each has its own scale."""
    scaled = (maps / maps.amax((2, 3), keepdim=True).clamp_min(1e-12)).float().cpu().numpy()
    gh, gw = scaled.shape[2:]
    high = 0.9 * len(layers) * gh / gw
    figure = new_figure(0.9 * len(heads) + 0.5, high + 0.4, dpi=110)
    axes = figure.add_subplot()
    _mosaic(axes, colormaps["inferno"](scaled)[..., :3])
    _tick(axes, [str(layer) for layer in layers], [str(head) for head in heads], (gh, gw))
    label_axes(axes, x="head", y="layer")
    return figure


def _mosaic(axes: Axes, tiles: np.ndarray) -> AxesImage:
    """Draws RGB tiles `rows columns h w 3` in one picture, a pixel apart."""
    style_axes(axes, grid=False)
    axes.set(xticks=[], yticks=[])
    return axes.imshow(tiled(tiles, 1, 1.0), interpolation="nearest")


def _tick(axes: Axes, rows: list[str], columns: list[str], tile: tuple[int, ...]) -> None:
    """Names the rows and columns of a mosaic of tiles `h w`."""
    height, width = tile
    axes.set_yticks([(height + 1) * i + height / 2 - 0.5 for i in range(len(rows))], rows)
    axes.set_xticks([(width + 1) * i + width / 2 - 0.5 for i in range(len(columns))], columns)
