"""Common parts of all figures, on the Agg canvas, without pyplot or global settings."""

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PNG_DPI = 160
"""Sharp on phones, where a CSS pixel is two or three dots."""
PIXEL_ART = 100
"""Images with fewer pixels a side, such as digits of 8, are enlarged as crisp squares."""


@dataclass(frozen=True, kw_only=True)
class Theme:
    """Colours of a figure: Okabe and Ito's palette, distinguishable for colour-blind readers."""

    paper: str
    ink: str
    muted: str
    grid: str
    first: str
    second: str
    third: str
    wrong: str
    """Text of a wrong prediction."""
    soft: str
    """Background of code and images."""
    ramp: tuple[str, ...]
    """Sequential colours of one hue, from 0 to 1."""


LIGHT = Theme(
    paper="#ffffff",
    ink="#1d2329",
    muted="#626c76",
    grid="#e4e8eb",
    first="#0072b2",
    second="#d55e00",
    third="#009e73",
    wrong="#b84f00",
    soft="#f5f7f8",
    ramp=("#ffffff", "#cfe2f0", "#62a6d2", "#0f639f", "#08304f"),
)
DARK = Theme(
    paper="#14181c",
    ink="#e6e9ec",
    muted="#98a3ad",
    grid="#2b333a",
    first="#56b4e9",
    second="#e69f00",
    third="#2fc39b",
    wrong="#e69f00",
    soft="#1c2227",
    ramp=("#14181c", "#173c57", "#2472a8", "#74b8e8", "#e2f1fc"),
)


def png(figure: Figure, *, crop: bool = False) -> bytes:
    """The figure as a PNG file, without its empty margins if `crop`."""
    out, margins = BytesIO(), {"bbox_inches": "tight", "pad_inches": 0.08} if crop else {}
    figure.savefig(out, format="png", dpi="figure", facecolor=figure.get_facecolor(), **margins)
    return out.getvalue()


def new_figure(width: float, height: float, theme: Theme, *, dpi: int = PNG_DPI) -> Figure:
    """An empty figure of this size in inches, with constrained layout."""
    figure = Figure((width, height), dpi, facecolor=theme.paper, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, theme: Theme, *, grid: bool = True) -> None:
    """Removes the frame; dims the ticks; draws a light grid."""
    axes.set_facecolor(theme.paper)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=theme.muted, labelsize=8, length=0)
    if grid:
        axes.grid(color=theme.grid, linewidth=0.8)
        axes.set_axisbelow(True)


def label_axes(axes: Axes, theme: Theme, *, x: str = "", y: str = "") -> None:
    axes.set_xlabel(x, color=theme.muted, fontsize=9)
    axes.set_ylabel(y, color=theme.muted, fontsize=9)


def tiled(tiles: np.ndarray, gap: int, paper: np.ndarray | float) -> np.ndarray:
    """Tiles `rows columns h w 3` as one picture, `gap` pixels of the colour `paper` apart."""
    rows, columns, h, w, _ = tiles.shape
    picture = np.empty((rows, h + gap, columns, w + gap, 3), tiles.dtype)
    picture[:] = paper
    picture[:, :h, :, :w] = tiles.swapaxes(1, 2)
    return picture.reshape(rows * (h + gap), columns * (w + gap), 3)[:-gap, :-gap]
