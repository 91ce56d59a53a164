"""first_batch.png: the first training batch, with its labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from vit.errors import some_of
from vit.extensions.reports.drawing import png
from vit.extensions.reports.figures import labelled_images
from vit.writing import write_bytes

MOST_LABELS = 4
"""Of an image."""


def draw_first_batch(
    run: Path, batch: Mapping[str, np.ndarray], classes: Sequence[str]
) -> list[tuple[Image.Image, str]]:
    """Draws the content of first_batch.npz; returns its images and their labels."""
    images = [Image.fromarray(image) for image in batch["images"]]
    title = f"The first training batch: {len(images)} of {batch['size']} images"
    captions = [caption(target, classes) for target in batch["targets"]]
    write_bytes(run / "first_batch.png", png(labelled_images(images, captions, title)))
    return list(zip(images, captions, strict=True))


def caption(target: np.ndarray, classes: Sequence[str]) -> str:
    """The class of an index, or the classes of shares `k`, the largest first."""
    if target.ndim == 0:
        return classes[int(target)]
    order = np.argsort(-target, kind="stable")
    shares = [(classes[int(k)], float(target[k])) for k in order if target[k] > 0]
    mixed = any(share < 1 for _, share in shares)
    words = [f"{name} {share:.2f}" if mixed else name for name, share in shares]
    return some_of(words, MOST_LABELS) or "no label"
