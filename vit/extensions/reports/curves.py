"""Curves of metrics.csv: loss, accuracy and learning rate over training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, style_axes
from vit.extensions.reports.run_list import Row

PANELS = {
    "Loss": ("train/loss", "val/loss", "val/constant_loss"),
    "Accuracy": ("train/acc1", "val/acc1", "val/acc5", "val/constant_acc1"),
    "mAP and F1": ("val/map", "val/f1"),
    "Effective rank": ("effective_rank",),
    "Information of answers on images, nats": ("answer_nats",),
    "Named by neighbours": ("yardstick/knn",),
    "Learning rate": ("lr",),
}
"""Panel -> columns. An accuracy replaces mAP and F1, which are for multi-label runs."""

NAMES = {
    "train/loss": "train",
    "val/loss": "val",
    "train/acc1": "train",
    "val/acc1": "val",
    "val/acc5": "val, top 5",
    "val/constant_loss": "val, best constant",
    "val/constant_acc1": "val, most frequent",
    "val/map": "val mAP",
    "val/f1": "val F1",
}


def panels_of(rows: Sequence[Row]) -> dict[str, tuple[str, ...]]:
    """Panels with data -> their columns with data."""
    present = {column for row in rows for column in row}
    panels = {
        panel: tuple(column for column in columns if column in present)
        for panel, columns in PANELS.items()
    }
    if panels["Accuracy"]:
        panels["mAP and F1"] = ()
    return {panel: columns for panel, columns in panels.items() if columns}


def curves(rows: Sequence[Row], panels: Sequence[str]) -> Figure:
    """Panels (names from `panels_of`) of the history side by side."""
    available = panels_of(rows)
    columns = {column for panel in available.values() for column in panel}
    # Rows of a final test have other values of epoch and images.
    rows = [row for row in rows if columns & row.keys()]
    position, label = positions(rows)
    figure = new_figure(3.7 * len(panels), 2.7)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        style_axes(axes)
        axes.set_title(panel, loc="left", color=LIGHT.ink, fontsize=10, fontweight="bold")
        for column in available[panel]:
            chosen = [i for i, row in enumerate(rows) if column in row]
            values = np.array([rows[i][column] for i in chosen])
            _draw(axes, column, position[chosen], values)
        if len(available[panel]) > 1:
            axes.legend(frameon=False, fontsize=8.5, labelcolor=LIGHT.ink)
        if panel in ("Accuracy", "mAP and F1", "Named by neighbours"):
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        if panel == "Learning rate":
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:.3g}".replace("e-0", "e-"))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(
            MaxNLocator(6, steps=[1, 2, 5, 10], integer=label == "epoch" and max(position) >= 3)
        )
        if label == "images seen":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        label_axes(axes, x=label)
    return figure


def positions(rows: Sequence[Row]) -> tuple[np.ndarray, str]:
    """Position of each row on the horizontal axis, and the name of that axis.

    Epochs if there are at least two and images seen grow evenly with them, otherwise images seen;
    steps if no row has images.
    """
    step, images, epoch = (
        np.array([row.get(column, np.nan) for row in rows])
        for column in ("step", "images", "epoch")
    )
    seen, name = step + 1, "steps"  # Lightning numbers them from 0
    counted = np.isfinite(images)
    if counted.any():  # a row of validation alone has none
        seen, name = np.interp(step, step[counted], images[counted]), "images seen"
    # A row of epoch e (counted from 0) lies between e and e + 1 epochs of images.
    per_epoch = (seen / (epoch + 1)).max()
    even = not (seen < epoch * per_epoch * (1 - 1e-6)).any()
    if epoch.max() >= 1 and even:
        return seen / per_epoch, "epoch"
    return seen, name


def _draw(axes: Axes, column: str, x: np.ndarray, y: np.ndarray) -> None:
    # If the best weights were scored again, the first value is that of training.
    x, first = np.unique(x, return_index=True)
    y = y[first]
    colour = LIGHT.second if column.startswith("val") else LIGHT.accent
    if column in ("val/acc5", "val/f1"):
        colour = LIGHT.third
    style = "-"
    if "constant" in column:
        colour, style = LIGHT.muted, ":"
    marker = "o" if len(x) <= (1 if column == "lr" else 30) else ""
    label = NAMES.get(column, "")
    window = len(x) // 40
    if column == "train/loss" and window > 3:
        axes.plot(x, y, color=colour, linewidth=0.6, alpha=0.35)
        mean = np.ones(window) / window
        x, y = np.convolve(x, mean, "valid"), np.convolve(y, mean, "valid")
    shape = {"linewidth": 1.6, "linestyle": style, "marker": marker, "markersize": 3.5}
    axes.plot(x, y, color=colour, label=label, **shape)
