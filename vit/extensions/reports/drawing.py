"""Common parts of all figures, without pyplot or global settings.

They are drawn in the colours of LIGHT; on a page these are variables, which are dark in the dark.
"""

import re
from io import BytesIO
from types import SimpleNamespace

import numpy as np
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PNG_DPI = 160
"""Sharp on phones, where a CSS pixel is two or three dots."""
PIXEL_ART = 100
"""Images with fewer pixels a side, such as digits of 8, are enlarged as crisp squares."""


LIGHT = SimpleNamespace(
    paper="#ffffff",
    ink="#1d2329",
    muted="#626c76",
    line="#e4e8eb",
    accent="#0072b2",
    second="#d55e00",
    third="#009e73",
)
"""Colours of figures and pages: Okabe and Ito's palette, distinguishable for colour-blind readers.
page.css has those of a dark page, and those that no figure needs."""


def svg(figure: Figure, description: str) -> Markup:
    """The figure as an element of a page, in the page's colours and font."""
    out = BytesIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(out, format="svg", facecolor="none", metadata=nothing)
    text = out.getvalue().decode()
    text = re.sub(r"<style.*?</style>| id=\"[\w.]+_\d+\"", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), text)
    text = text.replace("xlink:href", "href")
    for name, colour in vars(LIGHT).items():
        text = text.replace(colour, f"var(--{name})")
    box, content = re.findall(r'viewBox="(.*?)".*?>(.*)</svg>', text, flags=re.DOTALL)[0]
    width = round(float(box.split()[2]) * 96 / 72)
    start = Markup('<svg class="plot" role="img" aria-label="{}" viewBox="{}" width="{}">')
    return start.format(description, box, width) + Markup(content + "</svg>")


def png(figure: Figure, *, crop: bool = False) -> bytes:
    """The figure as a PNG file, without its empty margins if `crop`."""
    out, margins = BytesIO(), {"bbox_inches": "tight", "pad_inches": 0.08} if crop else {}
    figure.savefig(out, format="png", dpi="figure", facecolor=figure.get_facecolor(), **margins)
    return out.getvalue()


def new_figure(width: float, height: float, *, dpi: int = PNG_DPI) -> Figure:
    """An empty figure of this size in inches, with constrained layout."""
    figure = Figure((width, height), dpi, facecolor=LIGHT.paper, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, *, grid: bool = True) -> None:
    """Removes the frame; dims the ticks; draws a light grid."""
    axes.set_facecolor(LIGHT.paper)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=LIGHT.muted, labelsize=8, length=0)
    if grid:
        axes.grid(color=LIGHT.line, linewidth=0.8)
        axes.set_axisbelow(True)


def label_axes(axes: Axes, *, x: str = "", y: str = "") -> None:
    axes.set_xlabel(x, color=LIGHT.muted, fontsize=9)
    axes.set_ylabel(y, color=LIGHT.muted, fontsize=9)


def tiled(tiles: np.ndarray, gap: int, paper: float) -> np.ndarray:
    """Tiles `rows columns h w c` as one picture, `gap` pixels of the value `paper` apart."""
    rows, columns, h, w, c = tiles.shape
    picture = np.full((rows, h + gap, columns, w + gap, c), paper, tiles.dtype)
    picture[:, :h, :, :w] = tiles.swapaxes(1, 2)
    return picture.reshape(rows * (h + gap), columns * (w + gap), c)[:-gap, :-gap]
