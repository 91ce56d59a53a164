"""Report of a run without labels, such as masked patch prediction: metrics, curves, examples.

Shapes: n images, h w pixels.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vit.reports import curves
from vit.reports.drawing import DARK, LIGHT, Theme, new_figure, png
from vit.reports.page import code, heading, headline, page, picture, section, text, title
from vit.reports.report import (
    SPLIT_NAMES,
    metrics_table,
    origin,
    training_curves,
)
from vit.reports.wording import percent
from vit.writing import write_bytes, write_text

COLUMNS = ("image", "seen", "predicted", "true")


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Images and the predictions for their corrupted patches: uint8 `n h w 3`."""

    images: np.ndarray
    seen: np.ndarray
    """The input of the encoder: masked patches are gray."""
    predicted: np.ndarray
    true: np.ndarray
    """The true colours for `predicted`."""
    corrupted: np.ndarray
    """`n h w`, pixels of corrupted patches, the only ones with predictions."""


def pretraining_headline(split: str, metrics: Mapping[str, float]) -> str:
    """Loss and accuracy, if any, compared with the best constant prediction."""
    line = f"{split} loss  {metrics[f'{split}/loss']:.4f}"
    if f"{split}/constant_loss" in metrics:
        line += f"  (best constant prediction: {metrics[f'{split}/constant_loss']:.4f})"
    if f"{split}/constant_acc1" not in metrics:
        return line
    right, most = metrics[f"{split}/acc1"], metrics[f"{split}/constant_acc1"]
    return f"{line}\n{split} colours right  {percent(right)}  (the most frequent: {percent(most)})"


def write_pretraining(run_dir: Path, split: str, examples: Examples | None) -> None:
    """Writes curves.png, masked_patches.png (of `examples`) and report.html.

    Reads summary.json, config.yaml and metrics.csv of the run.
    """
    summary = json.loads((run_dir / "summary.json").read_text("utf-8"))
    config = (run_dir / "config.yaml").read_text("utf-8")
    history = curves.read_history(run_dir / "metrics.csv")
    if panels := list(curves.panels_of(history)):
        write_bytes(run_dir / "curves.png", png(curves.curves(history, panels)))
    pictures = ""
    if examples is not None:
        light, dark = (png(mosaic(examples, theme), crop=True) for theme in (LIGHT, DARK))
        write_bytes(run_dir / "masked_patches.png", light)
        pictures = picture(light, dark, "Predicted and true colours")
    name, run = run_dir.resolve().name, shlex.quote(str(run_dir))
    html = page(
        f"{name} · training without labels",
        [
            title(name, _subtitle(summary)),
            _headline(split, summary["metrics"]),
            section("Metrics", metrics_table(summary["metrics"], summary["images"].get(split, 0))),
            section("Training", training_curves(history)),
            section("Predicted colours", pictures and text(_EXPLAINED), pictures),
            section(
                "Use this encoder",
                heading("Fine-tune it on images with labels"),
                code(f"vit fit -c RECIPE --data.root LABELLED --model.pretrained {run}"),
                heading("Score it again"),
                code(f"vit test {run}"),
            ),
            section("How it was made", *origin(summary, config)),
        ],
    )
    write_text(run_dir / "report.html", html, errors="backslashreplace")


_EXPLAINED = (
    "From left to right: the image; the input of the encoder, masked patches in gray; the "
    "colours that it predicted for the corrupted patches; the true ones."
)


def _subtitle(summary: Mapping) -> str:
    images = ", ".join(f"{split} {n:,}" for split, n in summary["images"].items() if n)
    return f"{summary['parameters']:,} parameters · images without labels: {images}"


def _headline(split: str, metrics: Mapping[str, float]) -> str:
    loss, constant = metrics.get(f"{split}/loss"), metrics.get(f"{split}/constant_loss")
    if loss is None or constant is None:
        return ""
    words = SPLIT_NAMES.get(split, split)
    note = f"The best answer that is the same for all patches has a loss of {constant:.3f}."
    if f"{split}/acc1" in metrics:
        right, most = metrics[f"{split}/acc1"], metrics[f"{split}/constant_acc1"]
        note += (
            f" {percent(right)} of the colours are right; always answering the most frequent one "
            f"would be right for {percent(most)}."
        )
    return headline(f"{words} loss", f"{loss:.3f}", note)


def mosaic(examples: Examples, theme: Theme = LIGHT) -> Figure:
    """Each image, its encoder input, predicted and true colours; two images per row."""
    paper = np.array([int(theme.paper[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.uint8)
    blocks = min(2, len(examples.images))
    picture, lefts, side = tiles(examples, blocks, paper)
    height, width = picture.shape[:2]
    figure = new_figure(5.2 * blocks, 5.2 * blocks * height / width + 0.3, theme)
    axes = figure.add_subplot()
    axes.set_axis_off()
    # Small images stay crisp squares.
    axes.imshow(picture, interpolation="nearest" if side < 100 else "antialiased")
    for at, left in enumerate(lefts):
        name = COLUMNS[at % len(COLUMNS)]
        axes.text(left + side / 2, -side / 16, name, ha="center", color=theme.muted, fontsize=9)
    return figure


def tiles(examples: Examples, blocks: int, paper: np.ndarray) -> tuple[np.ndarray, list[int], int]:
    """All pictures as one image, with start and width of each column in pixels.

    Each image has four columns; a row has `blocks` images, with a wider gap between them. Gaps and
    pixels without predictions have the colour `paper` (red, green, blue).
    """
    hidden = ~examples.corrupted[..., None]
    predicted, true = (np.where(hidden, paper, c) for c in (examples.predicted, examples.true))
    columns = np.stack([examples.images, examples.seen, predicted, true], axis=1)
    n, per_image, h, w, _ = columns.shape
    gap = max(w // 8, 1)
    lefts = [
        block * (per_image * (w + gap) + gap) + column * (w + gap)
        for block in range(blocks)
        for column in range(per_image)
    ]
    down = -(-n // blocks)
    whole = np.empty((down * (h + gap) - gap, lefts[-1] + w, 3), dtype=np.uint8)
    whole[:] = paper
    for image in range(n):
        row, block = divmod(image, blocks)
        top = row * (h + gap)
        for column in range(per_image):
            left = lefts[block * per_image + column]
            whole[top : top + h, left : left + w] = columns[image, column]
    return whole, lefts, w
