"""The figures of a report: confusion, reliability, wrong images.

Shapes: k classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image

from vit.extensions.reports.drawing import LIGHT, PIXEL_ART, label_axes, new_figure, style_axes
from vit.extensions.reports.intervals import wilson_interval
from vit.extensions.reports.lettering import columns, drawable, legible, shorten, text_style
from vit.extensions.reports.scores import most_confused

if TYPE_CHECKING:
    from vit.extensions.reports.reliability import Reliability  # imports torch

MAX_CLASSES = 60
"""Above this the confusion matrix shows SHOWN_CLASSES of them, so that names stay readable."""
SHOWN_CLASSES = 30
RAMP = ("#ffffff", "#cfe2f0", "#62a6d2", "#0f639f", "#08304f")
"""Colours of shares from 0 to 1, of one hue."""
WITH_NUMBERS = 20
"""Up to this number of classes, cells are large enough for their numbers."""
NAME_COLUMNS = 24


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> Figure:
    """Confusion matrix: rows of `matrix` (k k, counts) as fractions of the true class.

    With more than MAX_CLASSES it shows the SHOWN_CLASSES with the largest errors; rows are still
    fractions of all images of the class.
    """
    shown = most_confused_classes(matrix)
    count = matrix.sum(1, keepdims=True)
    share = np.divide(matrix, count, out=np.full(matrix.shape, np.nan), where=count > 0)
    share = share[np.ix_(shown, shown)]
    names = [legible_name(classes[i], i) for i in shown]
    num, widest = len(shown), max(map(columns, names))
    cell = float(np.clip(4.2 / num, 0.16, 0.8))
    letters = float(np.clip(cell * 72 * 0.62, 6.5, 9.0))
    flat = widest * letters * 0.62 < cell * 72
    margin = widest * letters * 0.62 / 72 + 0.6
    figure = new_figure(
        num * cell + margin + (0 if num <= WITH_NUMBERS else 0.7),
        num * cell + (0.75 if flat else margin) + 0.4,
    )
    axes = figure.add_subplot()
    ramp = LinearSegmentedColormap.from_list("ramp", RAMP).with_extremes(bad=LIGHT.line)
    # The square root makes cells of a few per cent visible beside a diagonal near 100 %.
    shares = axes.imshow(share, cmap=ramp, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    style_axes(axes, grid=False)
    axes.set_xticks(np.arange(num + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(num + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=LIGHT.line, linewidth=0.5)
    axes.tick_params(which="both", length=0)
    _name_ticks(axes, "x", names, letters, rotation=0 if flat else 90)
    _name_ticks(axes, "y", names, letters)
    label_axes(axes, x="predicted (per cent of the true class)", y="true")
    if num <= WITH_NUMBERS:
        _write_shares(axes, share, letters)
    else:
        _draw_scale(axes, shares, letters)
    if num < len(classes):
        title = f"The {num} of {len(classes)} classes with the largest errors"
        if not most_confused(matrix, limit=1):
            title = f"No errors; the first {num} of {len(classes)} classes"
        figure.suptitle(title, color=LIGHT.ink, fontsize=10)
    return figure


def _draw_scale(axes: Axes, shares: AxesImage, size: float) -> None:
    """The shares that colours mean, beside the matrix."""
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(shares, cax=axes.inset_axes((1.02, 0, 0.02, 1)))
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", "5 %", "25 %", "50 %", "100 %"])
    bar.ax.tick_params(colors=LIGHT.muted, labelsize=size, length=0)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def most_confused_classes(matrix: np.ndarray) -> list[int]:
    """The classes that `confusion` shows, in class order."""
    num_classes = len(matrix)
    if num_classes <= MAX_CLASSES:
        return list(range(num_classes))
    pairs = most_confused(matrix, limit=num_classes**2)
    ranked = dict.fromkeys([k for true, other, _ in pairs for k in (true, other)])
    ranked |= dict.fromkeys(range(num_classes))  # too few errors: filled with the first classes
    return sorted(list(ranked)[:SHOWN_CLASSES])


def _write_shares(axes: Axes, share: np.ndarray, size: float) -> None:
    for (row, column), value in np.ndenumerate(share):
        if not value > 0:
            continue
        text = f"{100 * value:.0f}"
        if text in ("0", "100") and value < 1:
            text = "<1" if text == "0" else ">99"
        colour = LIGHT.paper if value > 0.3 else LIGHT.ink
        axes.text(column, row, text, ha="center", va="center", fontsize=size, color=colour)


def reliability(groups: "Reliability") -> Figure:
    """Accuracy against confidence with 95 % Wilson intervals, above a histogram of confidences."""
    figure = new_figure(4.6, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    bounds = np.array(
        [wilson_interval(int(h), int(n)) for h, n in zip(groups.hits, groups.count, strict=True)]
    )
    for axes in (upper, lower):
        style_axes(axes)
    upper.plot([0, 1], [0, 1], color=LIGHT.muted, linewidth=1, linestyle=(0, (4, 3)))
    upper.vlines(groups.confidence, bounds[:, 0], bounds[:, 1], color=LIGHT.accent, linewidth=1.2)
    upper.plot(groups.confidence, groups.accuracy, "o", markersize=5, color=LIGHT.accent)
    upper.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
    for axis in (upper.xaxis, upper.yaxis):
        axis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    label_axes(upper, y="share that is right")
    # Points are at the mean confidence of a bin; bars have the width of the bin.
    middle, width = (groups.low + groups.high) / 2, 0.92 * (groups.high - groups.low)
    lower.bar(middle, groups.count, width=width, color=LIGHT.accent, alpha=0.75)
    lower.yaxis.set_major_locator(MaxNLocator(2, integer=True))
    label_axes(lower, x="confidence", y="predictions")
    figure.align_ylabels()
    return figure


def answered(accuracies: Sequence[float]) -> Figure:
    """Accuracy against the share of images that is answered, given for 1 % to 100 % in equal steps;
    of fewer than a tenth there are too few images to tell."""
    figure = new_figure(4.6, 3.2)
    axes = figure.add_subplot()
    style_axes(axes)
    shares = np.arange(1, len(accuracies) + 1) / len(accuracies)
    shown = slice(len(shares) // 10 - 1, None)
    axes.plot(shares[shown], accuracies[shown], color=LIGHT.accent, linewidth=1.6)
    axes.plot(1, accuracies[-1], "o", markersize=5, color=LIGHT.accent, clip_on=False)
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    label_axes(axes, x="share that is answered", y="of these, share that is right")
    return figure


@dataclass(frozen=True, kw_only=True)
class WrongImage:
    """Confidently wrong prediction."""

    row: int
    image: Image.Image | None
    """A small RGB image; None if the file can no longer be opened."""
    name: str
    true: tuple[int, ...]
    """The image's classes: one, or any number with multi-label targets."""
    predicted: int
    probability: float
    """Probability of the predicted class."""
    seen: Image.Image | None = None
    """The picture of what the model looked at, if it was drawn."""


Line = tuple[str, str, float, bool]
"""Text, colour, size in points, true for bold."""


def worst(wrong: Sequence[WrongImage], classes: Sequence[str], title: str) -> Figure:
    """Wrong images, if any, with prediction, true class and file name."""
    captions: list[list[Line]] = []
    for item in wrong:
        true = ", ".join(legible_name(classes[i], i) for i in item.true) or "no class"
        predicted = shorten(legible_name(classes[item.predicted], item.predicted), 19)
        captions.append(
            [
                (predicted, LIGHT.second, 8.5, True),
                (f"true: {shorten(true, 20)}", LIGHT.ink, 8.5, False),
                (shorten(legible(item.name), 32), LIGHT.muted, 7, False),
            ]
        )
    shares = [f"{100 * item.probability:.1f} %" for item in wrong]
    return _sheet([item.image for item in wrong], captions, title, side=2.0, shares=shares)


def labelled_images(images: Sequence[Image.Image], captions: Sequence[str], title: str) -> Figure:
    """Images above their captions."""
    lines: list[list[Line]] = [
        [(shorten(legible(text), 26), LIGHT.ink, 7.5, False)] for text in captions
    ]
    return _sheet(list(images), lines, title, side=1.6)


def _sheet(
    images: Sequence[Image.Image | None],
    captions: Sequence[Sequence[Line]],
    title: str,
    *,
    side: float,
    shares: Sequence[str] = (),
) -> Figure:
    """Rows of up to five images of `side` inches, above lines of text; a share ends the first."""
    across = min(5, max(3, len(images)))
    down = -(-len(images) // across)
    gap, line, top = 0.16, 0.165, 0.45  # inches
    row_height = side + gap + line * max(map(len, captions), default=0)
    width, height = across * (side + gap) + gap, down * row_height + top
    figure = new_figure(width, height, dpi=110)  # photos result in large PNG files
    figure.set_layout_engine("none")
    style: dict[str, Any] = {"va": "center", "color": LIGHT.ink, "fontsize": 10.5}
    figure.text(gap / width, 1 - 0.2 / height, title, **style)
    for at, (image, lines) in enumerate(zip(images, captions, strict=True)):
        row, column = divmod(at, across)
        left, low = gap + column * (side + gap), top + row * row_height + side
        for i, (text, colour, size, bold) in enumerate(lines):
            y = 1 - (low + 0.06 + line * i) / height
            style = {"va": "top", "color": colour, **text_style(size, bold=bold)}
            figure.text(left / width, y, text, **style)
        if shares:
            style = {"va": "top", "ha": "right", "color": LIGHT.second, "fontsize": 8.5}
            figure.text((left + side) / width, 1 - (low + 0.06) / height, shares[at], **style)
        if image is None:
            style = {"va": "bottom", "color": LIGHT.muted, "fontsize": 8}
            figure.text(left / width, 1 - (low - 0.1) / height, "cannot be opened", **style)
        else:
            place = (left / width, 1 - low / height, side / width, side / height)
            axes = figure.add_axes(place, anchor="SW")
            axes.set_axis_off()
            crisp = max(image.size) < PIXEL_ART
            axes.imshow(image, interpolation="nearest" if crisp else "antialiased")
    return figure


def legible_name(name: str, index: int) -> str:
    """A class name, shortened; #index if no font can draw it."""
    return shorten(legible(name) if drawable(name) else f"#{index}", NAME_COLUMNS)


def _name_ticks(
    axes: Axes, which: str, names: list[str], size: float, *, rotation: float = 0
) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    style = {"color": LIGHT.ink, "rotation": rotation, **text_style(size)}
    axis.set_ticks(range(len(names)), labels=names, **style)
