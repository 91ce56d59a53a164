"""Figures of many models: accuracy against training compute, speed against image size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import sqrt
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


@dataclass(frozen=True, kw_only=True)
class SpeedCurve:
    """Images per second by image size: (median, slowest, fastest) of the repetitions."""

    label: str
    sizes: Sequence[int]
    """Side in pixels; for other shapes, the side of a square of equal area."""
    inference: Sequence[tuple[float, float, float]]
    training: Sequence[tuple[float, float, float]]


def speed_against_size(curves: Sequence[SpeedCurve], title: str, theme: Theme = LIGHT) -> Figure:
    """Figure 12 of the ViT paper for this machine: inference left, training right.

    `title` names the machine. Bars reach from the slowest to the fastest repetition.
    """
    figure = new_figure(8.2, 3.9, theme)
    left, right = figure.subplots(1, 2, sharey=True)
    sizes = sorted({size for curve in curves for size in curve.sizes})
    for axes, name in ((left, "Inference"), (right, "Training step")):
        style_axes(axes, theme)
        axes.set_title(name, loc="left", color=theme.ink, fontsize=10, fontweight="bold")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(sizes, labels=[str(size) for size in sizes])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        label_axes(axes, theme, x="image size, pixels", y="images/s" if axes is left else "")
        looks = cycle(
            (colour, marker, line)
            for line, marker in (("-", "o"), ((0, (4, 2)), "s"), ((0, (1, 1.5)), "D"))
            for colour in (theme.first, theme.second, theme.third)
        )
        for curve, (colour, marker, line) in zip(curves, looks, strict=False):
            rates = curve.inference if axes is left else curve.training
            middle = [rate[0] for rate in rates]
            reach = [[m - rate[1] for m, rate in zip(middle, rates, strict=True)],
                     [rate[2] - m for m, rate in zip(middle, rates, strict=True)]]  # fmt: skip
            axes.errorbar(
                curve.sizes, middle, reach, color=colour, marker=marker, linestyle=line,
                markersize=4, linewidth=1.6, elinewidth=1, label=shorten(curve.label, 28),
            )  # fmt: skip
    right.legend(frameon=False, fontsize=8.5, labelcolor=theme.ink)
    figure.supxlabel(title, color=theme.muted, fontsize=8)
    return figure


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


def speed_figure(rows: Sequence[Row]) -> Figure:
    """Images per second by image size, one curve per model."""
    curves = []
    for name in dict.fromkeys(row["model"] for row in rows):
        by_size = sorted((r for r in rows if r["model"] == name), key=_side)
        curves.append(
            SpeedCurve(
                label=name,
                sizes=[_side(row) for row in by_size],
                inference=[_reach(row["inference_images_per_second"]) for row in by_size],
                training=[_reach(row["training_images_per_second"]) for row in by_size],
            )
        )
    first = rows[0]
    where = f"{first['measured_on']}, {first['precision']}, batch {first['batch_size']}"
    return speed_against_size(curves, where)


def _side(row: Row) -> int:
    height, width = row["image_size"]
    return round(sqrt(height * width))


def _reach(rate: dict[str, float]) -> tuple[float, float, float]:
    return rate["median"], rate["min"], rate["max"]
