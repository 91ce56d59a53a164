"""Report of a run without labels, such as masked patch prediction: metrics, curves, examples.

Shapes: n images, h w pixels.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vit.extensions.reports.drawing import LIGHT, PIXEL_ART, Theme, new_figure, tiled
from vit.extensions.reports.page import plot
from vit.extensions.reports.report import SPLIT_NAMES, write_page
from vit.writing import write_bytes

COLUMNS = ("image", "seen", "predicted", "true")


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Images and the predictions for their corrupted patches: uint8 `n h w 3`."""

    images: np.ndarray
    seen: np.ndarray
    """What the predictions are made from; the rest is gray."""
    predicted: np.ndarray
    true: np.ndarray
    """The true colours for `predicted`."""
    corrupted: np.ndarray
    """`n h w`, pixels of corrupted patches, the only ones with predictions."""
    caption: str
    """What is seen from left to right."""


def write_pretraining(run_dir: Path, split: str, examples: Examples | None, note: str) -> None:
    """Writes curves.png, masked_patches.png (of `examples`) and report.html.

    Reads summary.json, config.yaml and metrics.csv of the run. `note`: what is said of its loss.
    """
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    loss, colours = summary["metrics"].get(f"{split}/loss"), None
    if examples is not None:
        colours = plot(
            lambda theme: mosaic(examples, theme), "Predicted and true colours", crop=True
        )
        write_bytes(run_dir / "masked_patches.png", colours.light)
    counts = ", ".join(f"{split} {n:,}" for split, n in summary["images"].items() if n)
    run = shlex.quote(str(run_dir))
    fine_tune = f"vit fit --data LABELLED --pretrained {run}"
    write_page(
        run_dir,
        summary,
        summary["images"].get(split, 0),
        kind="training without labels",
        about=f"{summary['parameters']:,} parameters · images without labels: {counts}",
        headline=None if loss is None else (f"{SPLIT_NAMES[split]} loss", f"{loss:.4f}", note),
        colours=colours,
        caption=examples and examples.caption,
        use_title="Use this encoder",
        commands=[
            ("Fine-tune it on images with labels", fine_tune),
            ("Score it again", f"vit test {run}"),
        ],
    )


def mosaic(examples: Examples, theme: Theme = LIGHT) -> Figure:
    """Images, their encoder input, predicted and true colours; two images per row."""
    paper = np.array([int(theme.paper[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.uint8)
    hidden = ~examples.corrupted[..., None]
    predicted, true = (np.where(hidden, paper, c) for c in (examples.predicted, examples.true))
    columns = np.stack([examples.images, examples.seen, predicted, true], axis=1)
    count, side = len(columns), columns.shape[3]
    across, gap = min(2, count), max(side // 8, 1)
    strips = np.stack([tiled(image[None], gap, paper) for image in columns])
    blank = np.broadcast_to(paper, (-count % across, *strips.shape[1:]))
    strips = np.concatenate([strips, blank])
    picture = tiled(strips.reshape(-1, across, *strips.shape[1:]), 2 * gap, paper)
    height, width = picture.shape[:2]
    figure = new_figure(5.2 * across, 5.2 * across * height / width + 0.3, theme)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.imshow(picture, interpolation="nearest" if side < PIXEL_ART else "antialiased")
    for block in range(across):
        for at, name in enumerate(COLUMNS):
            left = block * (strips.shape[2] + 2 * gap) + at * (side + gap)
            style = {"ha": "center", "color": theme.muted, "fontsize": 9}
            axes.text(left + side / 2, -side / 16, name, **style)
    return figure
