"""The figure of many models: accuracy against training compute."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from vit.errors import UserError
from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, style_axes
from vit.extensions.reports.lettering import legible, shorten, text_style

FAMILIES = {"ViT": ("o", LIGHT.accent), "ResNet": ("s", LIGHT.second), "hybrid": ("D", LIGHT.third)}
"""Marker and colour of the published families; the user's runs are stars."""
PLACES = ((7, 0, "left"), (-7, 0, "right"), (0, 8, "center"), (0, -8, "center"),
          (6, 7, "left"), (-6, 7, "right"), (6, -7, "left"), (-6, -7, "right"),
          (3, 12, "left"), (-3, 12, "right"), (3, -12, "left"), (-3, -12, "right"))  # fmt: skip
"""Offsets of a label from its marker in points, in order of preference."""


class ScalingPoint(NamedTuple):
    """A trained model."""

    label: str
    exaflops: float
    """Training compute, in units of 1e18 operations."""
    accuracy: float
    """Per cent."""
    family: str | None = None
    """ViT, ResNet or hybrid of the paper; None for a run of the user."""


def compute_figure(
    rows: Sequence[dict[str, Any]], published: Sequence[Any], accuracy: str, title: str
) -> Figure:
    """Figure 5 of the ViT paper (arXiv:2010.11929), with the runs among the rows of `vit compare`.

    `published`: rows of Table 6; `accuracy`: their column, of the name `title`. UserError if there
    are runs, but none with an accuracy.
    """
    runs = [row for row in rows if "run" in row and row["accuracy"] is not None]
    if any("run" in row for row in rows) and not runs:
        raise UserError("--figure: none of the runs has a top-1 accuracy to draw")
    points = [ScalingPoint(p.label, p.exaflops, p.score(accuracy), p.family) for p in published]
    points += [ScalingPoint(row["run"], row["exaflops"], row["accuracy"]) for row in runs]
    datasets = {row["dataset"] or "own data" for row in runs}
    label = "your runs" + (f" ({datasets.pop()})" if len(datasets) == 1 else "")
    return accuracy_against_compute(points, f"{title} top-1 after transfer", label)


def accuracy_against_compute(
    points: Sequence[ScalingPoint], accuracy: str, own_label: str
) -> Figure:
    """`accuracy` names the vertical axis, `own_label` the user's runs."""
    figure = new_figure(7.2, 4.6)
    axes = figure.add_subplot()
    style_axes(axes)
    axes.set_xscale("log")
    runs = [point for point in points if point.family is None]
    series = [
        ([point for point in points if point.family == family], f"{family} (paper)", *style, 6)
        for family, style in FAMILIES.items()
    ]
    for chosen, label, marker, colour, size in [*series, (runs, own_label, "*", LIGHT.ink, 11)]:
        if chosen:
            x, y = [p.exaflops for p in chosen], [p.accuracy for p in chosen]
            style = {"color": colour, "markersize": size, "markeredgewidth": 0}
            axes.plot(x, y, marker, label=label, zorder=3, **style)
    axes.margins(x=0.08, y=0.09)
    low, high = (limit(point.exaflops for point in points) for limit in (min, max))
    subs = (1, 2, 5) if high < 1000 * low else (1,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    label_axes(axes, x="training compute, exaFLOPs (1e18 operations)", y=accuracy)
    legend = axes.legend(frameon=False, fontsize=8.5, labelcolor=LIGHT.ink, loc="lower right")
    figure.draw_without_rendering()
    _place_labels(axes, [*runs, *(p for p in points if p.family)], legend)
    return figure


def _place_labels(axes: Axes, points: Sequence[ScalingPoint], legend: Legend) -> None:
    """Places each label at the first offset at which it covers nothing, if any."""
    canvas: Any = axes.get_figure(root=True).canvas  # pyright: ignore[reportOptionalMemberAccess]
    renderer = canvas.get_renderer()
    inside = axes.get_window_extent(renderer)
    scale = canvas.figure.dpi / 72
    taken = [legend.get_window_extent(renderer)]
    for point in points:
        x, y = axes.transData.transform((point.exaflops, point.accuracy))
        radius = (3 if point.family else 5) * scale
        taken.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
    for point in points:
        colour = FAMILIES[point.family][1] if point.family else LIGHT.ink
        name = shorten(legible(point.label), 28)
        for dx, dy, side in PLACES:
            text = axes.annotate(
                name, (point.exaflops, point.accuracy), (dx, dy), textcoords="offset points",
                ha=side, va="center", color=colour,
                **text_style(7.5, bold=point.family is None),
            )  # fmt: skip
            box = text.get_window_extent(renderer).padded(0.5 * scale)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1
            fits = fits and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def plain(value: float) -> str:
    """A power of ten: 0.01, 1, 1,000; 1e-05 beyond four places."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"
