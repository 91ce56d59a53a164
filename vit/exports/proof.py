"""Proof that an exported model answers as PyTorch does, on real or drawn pictures.

Shapes: n pictures, h w pixels, c channels.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter

from vit.data.decode import open_input
from vit.inference.engines import Arrays
from vit.inference.graph import Graph
from vit.preprocessing import Preprocess

TOLERANCE = 1e-4
"""Largest difference of an output in float32, over its largest value."""
BATCH = 16
PROOF_IMAGES = 64


@dataclass(frozen=True)
class Proof:
    """A comparison of two computations of one model."""

    difference: float
    """Largest difference of any output, over the largest value of that output."""
    agreeing: int
    """Pictures with the same first class, or the same labels; all of them without a head."""
    count: int
    origin: str
    """Where the pictures are from."""

    @property
    def passed(self) -> bool:
        """Equal within float32's rounding."""
        return self.difference <= TOLERANCE and self.agreeing == self.count

    def line(self) -> str:
        """For people."""
        return (
            f"{self.origin}: largest difference {self.difference:.1e} of the largest output, "
            f"{self.agreeing} of {self.count} answers equal"
        )


def cut(images: Iterable[Any], preprocess: Preprocess) -> np.ndarray:
    """Paths, PIL images or arrays, as a graph takes them: `n h w c`."""
    ready = [preprocess(open_input(image, preprocess.channels)) for image in images]
    return torch.stack(ready).permute(0, 2, 3, 1).contiguous().numpy()


def prove(
    graph: Graph, run: Callable[[np.ndarray], Arrays], pictures: np.ndarray, origin: str
) -> Proof:
    """Compares `run` with the graph in PyTorch on pictures `n h w c`."""
    difference, agreeing = 0.0, 0
    for start in range(0, len(pictures), BATCH):
        pixels = pictures[start : start + BATCH]
        with torch.inference_mode():
            outputs = graph(torch.from_numpy(pixels))
        ours = {name: t.numpy() for name, t in zip(graph.names, outputs, strict=True)}
        theirs = run(pixels)
        for name in set(graph.names) - {"labels"}:
            largest = np.abs(ours[name]).max() or 1.0  # a fresh head answers with zeros
            error = np.abs(ours[name] - theirs[name]).max() / largest
            difference = float(np.maximum(difference, error))  # max() could lose NaN
        agreeing += int((answers(ours) == answers(theirs)).all(axis=1).sum())
    return Proof(difference, agreeing, len(pictures), origin)


def answers(outputs: Arrays) -> np.ndarray:
    """The labels, or else the first class, `n _`; of a model without a head `n 0`."""
    if "labels" in outputs:
        return outputs["labels"]
    if "logits" in outputs:
        return outputs["logits"].argmax(1)[:, None]
    return outputs["features"][:, :0]


def drawn(preprocess: Preprocess) -> np.ndarray:
    """20 pictures `n h w c` of the same shapes, colours and noise in every call, from one seed."""
    random, count = np.random.default_rng(0), preprocess.channels
    height, width = preprocess.image_size
    images: list[Any] = []
    for _ in range(20):
        low, high = sorted(random.integers(0, 256, (2, 3)).tolist())
        ramp = np.linspace(low, high, width)[None].repeat(height, 0)
        image = Image.fromarray(ramp.astype(np.uint8))
        pen = ImageDraw.Draw(image)
        for shape in (pen.ellipse, pen.rectangle) * 3:
            left, right = sorted(random.integers(-width // 4, width * 5 // 4, 2).tolist())
            top, bottom = sorted(random.integers(-height // 4, height * 5 // 4, 2).tolist())
            shape((left, top, right, bottom), fill=tuple(random.integers(0, 256, 3).tolist()))
        image = image.filter(ImageFilter.GaussianBlur(float(random.uniform(0, width / 50))))
        noise = random.normal(0, random.uniform(0, 20), (height, width, 3))
        pixels = (np.asarray(image) + noise).clip(0, 255).astype(np.uint8)
        if count is not None:  # values of the model's own scale, from the gray of the picture
            gray = (pixels.mean(-1, keepdims=True) / 255 - 0.5) * 4
            pixels = gray * np.asarray(preprocess.std) + np.asarray(preprocess.mean)
            pixels = pixels.astype(np.float32)
        images.append(pixels)
    return np.stack(images)
