"""The figure of many models: accuracy against training compute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import Bbox

from vit.errors import UserError, shorten
from vit.reports.drawing import LIGHT, Theme, label_axes, new_figure, style_axes
from vit.reports.lettering import nearest_legible, text_style

MARKERS = {"ViT": "o", "ResNet": "s", "hybrid": "D"}
"""Markers of the published families; the user's runs are stars."""
PLACES = ((7, 0, "left"), (-7, 0, "right"), (0, 8, "center"), (0, -8, "center"),
          (6, 7, "left"), (-6, 7, "right"), (6, -7, "left"), (-6, -7, "right"),
          (3, 12, "left"), (-3, 12, "right"), (3, -12, "left"), (-3, -12, "right"))  # fmt: skip
"""Offsets of a label from its marker in points, in order of preference."""


Row = dict[str, Any]
"""A row of `vit compare`."""


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """A trained model."""

    label: str
    exaflops: float
    """Training compute, in units of 1e18 operations."""
    accuracy: float
    """Per cent."""
    family: str | None = None
    """ViT, ResNet or hybrid of the paper; None for a run of the user."""


def accuracy_against_compute(
    points: Sequence[ScalingPoint], accuracy: str, own_label: str, theme: Theme = LIGHT
) -> Figure:
    """Figure 5 of the ViT paper (arXiv:2010.11929), with the user's runs added.

    `accuracy` names the vertical axis, `own_label` the runs. Labels of points without free space
    are skipped.
    """
    figure = new_figure(7.2, 4.6, theme)
    axes = figure.add_subplot()
    style_axes(axes, theme)
    axes.set_xscale("log")
    colours = dict(zip(MARKERS, (theme.first, theme.second, theme.third), strict=True))
    for family, colour in colours.items():
        chosen = [point for point in points if point.family == family]
        _scatter(axes, chosen, f"{family} (paper)", colour, MARKERS[family], 6)
    runs = [point for point in points if point.family is None]
    _scatter(axes, runs, own_label, theme.ink, "*", 11)
    axes.margins(x=0.08, y=0.09)
    low, high = (limit(point.exaflops for point in points) for limit in (min, max))
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,), numticks=9)
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    label_axes(axes, theme, x="training compute, exaFLOPs (1e18 operations)", y=accuracy)
    legend = axes.legend(frameon=False, fontsize=8.5, labelcolor=theme.ink, loc="lower right")
    figure.draw_without_rendering()
    _place_labels(axes, [*runs, *(p for p in points if p.family)], colours, theme, legend)
    return figure


def _scatter(
    axes: Axes, points: Sequence[ScalingPoint], label: str, colour: str, marker: str, size: float
) -> None:
    if points:
        x, y = [p.exaflops for p in points], [p.accuracy for p in points]
        axes.plot(
            x, y, marker, color=colour, markersize=size, label=label, markeredgewidth=0, zorder=3
        )


def _place_labels(
    axes: Axes, points: Sequence[ScalingPoint], colours: Mapping[str, str], theme: Theme, legend
) -> None:
    """Places each label at the first offset where it covers nothing, in the order of `points`."""
    canvas = axes.get_figure(root=True).canvas  # pyright: ignore[reportOptionalMemberAccess]
    renderer = canvas.get_renderer()  # pyright: ignore[reportAttributeAccessIssue]
    inside = axes.get_window_extent(renderer)
    scale = canvas.figure.dpi / 72
    taken = [legend.get_window_extent(renderer)]
    for point in points:
        x, y = axes.transData.transform((point.exaflops, point.accuracy))
        radius = (3 if point.family else 5) * scale
        taken.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
    for point in points:
        colour = colours[point.family] if point.family else theme.ink
        name = shorten(nearest_legible(point.label), 28)
        for dx, dy, side in PLACES:
            text = axes.annotate(
                name, (point.exaflops, point.accuracy), (dx, dy), textcoords="offset points",
                ha=side, va="center", color=colour,
                **text_style(name, 7.5, bold=point.family is None),
            )  # fmt: skip
            box = text.get_window_extent(renderer).padded(0.5 * scale)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1
            fits = fits and inside.y0 <= box.y0 and box.y1 <= inside.y1
            if fits and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def plain(value: float) -> str:
    """Formats a power of ten: 0.01, 1, 1,000; 1e-05 beyond four places."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


class Published(Protocol):
    """A published training, such as a row of Table 6 of the ViT paper."""

    @property
    def exaflops(self) -> float: ...

    @property
    def label(self) -> str: ...

    @property
    def family(self) -> str: ...

    def score(self, name: str, /) -> float: ...


def compute_figure(
    rows: Sequence[Row], published: Sequence[Published], accuracy: str, title: str
) -> Figure:
    """All published points, and the runs among `rows`.

    `accuracy` selects the column of the published points, `title` is its axis title. UserError if
    no run has an accuracy.
    """
    runs = [row for row in rows if "run" in row and row["accuracy"] is not None]
    if any("run" in row for row in rows) and not runs:
        raise UserError("--figure: none of the runs has a top-1 accuracy to draw")
    points = [
        ScalingPoint(
            label=point.label,
            exaflops=point.exaflops,
            accuracy=point.score(accuracy),
            family=point.family,
        )
        for point in published
    ]
    points += [
        ScalingPoint(label=row["run"], exaflops=row["exaflops"], accuracy=row["accuracy"])
        for row in runs
    ]
    datasets = {row["dataset"] for row in runs}
    single = datasets.pop() if len(datasets) == 1 else None
    label = "your runs" + (f" ({single})" if single else "")
    return accuracy_against_compute(points, f"{title} top-1 after transfer", label)
