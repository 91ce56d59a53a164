"""Report of a run without labels, such as masked patch prediction: metrics, curves, examples.

Shapes: n images, h w pixels.
"""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vit.extensions.reports.drawing import LIGHT, PIXEL_ART, new_figure, png, svg, tiled
from vit.extensions.reports.report import SPLIT_NAMES, write_page
from vit.writing import write_bytes


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
    metrics, colours = dict(summary["metrics"]), None
    loss = metrics.pop(f"{split}/loss", None)
    for name in ("constant_loss", "acc1", "constant_acc1") if note else ():  # it says them
        metrics.pop(f"{split}/{name}", None)
    if examples is not None:
        figure = mosaic(examples)
        write_bytes(run_dir / "masked_patches.png", png(figure, crop=True))
        colours = svg(figure, "Predicted and true colours")
    counts = ", ".join(f"{split} {n:,}" for split, n in summary["images"].items() if n)
    run = shlex.quote(str(run_dir))
    score, headline = ("Score it again", f"vit test {run}"), ("Result", "", summary["headline"])
    if loss is None:
        score = ("Score its features", f"vit knn {run} --data LABELLED")
    else:
        headline = (f"{SPLIT_NAMES[split]} loss", f"{loss:.4f}", note)
    write_page(
        run_dir,
        summary,
        metrics,
        summary["images"].get(split, 0),
        kind="training without labels",
        about=f"{summary['parameters']:,} parameters · images without labels: {counts}",
        headline=headline,
        colours=colours,
        caption=examples and examples.caption,
        commands=[
            ("Fine-tune it on images with labels", f"vit fit --data LABELLED --pretrained {run}"),
            score,
        ],
    )


def mosaic(examples: Examples) -> Figure:
    """Images, their encoder input, predicted and true colours; two images per row."""
    columns = np.stack([examples.images, examples.seen, examples.predicted, examples.true], 1)
    count, side = len(columns), columns.shape[3]
    across, gap = min(2, count), max(side // 8, 1)
    alpha = np.full((*columns.shape[:-1], 1), 255, np.uint8)  # the paper shows where it is 0
    alpha[:, 2:] *= examples.corrupted[:, None, ..., None]
    columns = np.concatenate([columns, alpha], -1)
    strips = np.stack([tiled(image[None], gap, 0) for image in columns])
    strips = np.concatenate([strips, np.zeros((-count % across, *strips.shape[1:]), np.uint8)])
    picture = tiled(strips.reshape(-1, across, *strips.shape[1:]), 2 * gap, 0)
    height, width = picture.shape[:2]
    figure = new_figure(5.2 * across, 5.2 * across * height / width + 0.3)
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.imshow(picture, interpolation="nearest" if side < PIXEL_ART else "antialiased")
    for block in range(across):
        for at, name in enumerate(("image", "seen", "predicted", "true")):
            left = block * (strips.shape[2] + 2 * gap) + at * (side + gap)
            style = {"ha": "center", "color": LIGHT.muted, "fontsize": 9}
            axes.text(left + side / 2, -side / 16, name, **style)
    return figure
