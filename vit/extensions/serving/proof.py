"""Proof that an exported model answers as PyTorch does, and the accuracy that int8 costs.

Shapes: n pictures, h w pixels, c channels.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from vit.console import Meter
from vit.data.decode import open_input
from vit.data.sources import ImageSet
from vit.extensions.reports.intervals import Paired
from vit.extensions.serving.engines import Arrays
from vit.extensions.serving.graph import Graph
from vit.preprocessing import Preprocess

TOLERANCE = 1e-4
"""Largest difference of an output in float32, over its largest value."""
FACTOR, CEILING = 10, 1e-2
"""An export's distance from float64 may be so many times that of PyTorch in float32, up to this."""
BATCH = 16
PROOF_IMAGES = 64
Run = Callable[[np.ndarray], Arrays]
"""Pixels `n h w c` -> the named outputs."""


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
    in_float32: float | None = None
    """Where float32 is not exact enough, `difference` is from PyTorch in float64, and this is that
    of PyTorch in float32."""

    @property
    def passed(self) -> bool:
        """Equal within float32's rounding."""
        allowed = max(TOLERANCE, min(FACTOR * (self.in_float32 or 0.0), CEILING))
        return self.difference <= allowed and self.agreeing == self.count

    def to_dict(self) -> dict[str, object]:
        """Fields by their names in JSON."""
        return {"own" if name == "in_float32" else name: each for name, each in vars(self).items()}

    def line(self) -> str:
        """Sentence for people."""
        error = self.in_float32
        exact = f" from float64 (PyTorch in float32: {error:.1e})" if error else ""
        return (
            f"{self.origin}: largest difference{exact} {self.difference:.1e} of the largest "
            f"output, {self.agreeing} of {self.count} answers equal"
        )


def cut(images: Iterable[Any], preprocess: Preprocess) -> np.ndarray:
    """Paths, PIL images or arrays, as a graph takes them: `n h w c`."""
    ready = [preprocess(open_input(image, preprocess.channels)) for image in images]
    return torch.stack(ready).permute(0, 2, 3, 1).contiguous().numpy()


def prove(graph: Graph, run: Run, pictures: np.ndarray, origin: str) -> Proof:
    """Compares `run` with the graph in PyTorch on pictures `n h w c`.

    Deep random weights amplify float32's rounding in every runtime. A file that differs by more
    than TOLERANCE is compared in float64, of which it may be FACTOR times as far as PyTorch's own
    float32; of the outputs the proof has the one that is the worst in this regard.
    """
    apart, agreeing = _compared(partial(in_pytorch, graph), run, pictures)
    proof = Proof(max(apart.values()), agreeing, len(pictures), origin)
    if all(difference <= TOLERANCE for difference in apart.values()):  # NaN is not
        return proof
    exact = partial(in_pytorch, copy.deepcopy(graph).double())
    ours, _ = _compared(exact, partial(in_pytorch, graph), pictures)
    apart, _ = _compared(exact, run, pictures)
    shares = [apart[name] / max(ours[name], TOLERANCE / FACTOR) for name in apart]
    worst = list(apart)[int(np.argmax(shares))]  # NaN counts as the largest
    return replace(proof, difference=apart[worst], in_float32=ours[worst])


def compare(graph: Graph, run: Run, pictures: np.ndarray, origin: str) -> Proof:
    """Distance of `run` from the graph in PyTorch in float32 on pictures `n h w c`."""
    apart, agreeing = _compared(partial(in_pytorch, graph), run, pictures)
    return Proof(max(apart.values()), agreeing, len(pictures), origin)


def in_pytorch(graph: Graph, pixels: np.ndarray) -> Arrays:
    """Answers of the graph."""
    with torch.inference_mode():
        outputs = graph(torch.from_numpy(pixels))
    return {name: t.numpy() for name, t in zip(graph.names, outputs, strict=True)}


def _compared(first: Run, second: Run, pictures: np.ndarray) -> tuple[dict[str, float], int]:
    """The largest difference of each output over its largest value; pictures with equal answers."""
    apart, agreeing = {}, 0
    for start in range(0, len(pictures), BATCH):
        pixels = pictures[start : start + BATCH]
        ours, theirs = first(pixels), second(pixels)
        for name in ours.keys() - {"labels"}:
            largest = np.abs(ours[name]).max() or 1.0  # a fresh head answers with zeros
            error = np.abs(ours[name] - theirs[name]).max() / largest
            apart[name] = float(np.maximum(apart.get(name, 0.0), error))  # max() could lose NaN
        agreeing += int((answers(ours) == answers(theirs)).all(axis=1).sum())
    return apart, agreeing


def hits(runs: Sequence[Run], images: ImageSet, preprocess: Preprocess) -> list[np.ndarray]:
    """True `n` for the labelled images that each model names rightly."""
    parts = []
    with Meter("accuracy", len(images), "img") as meter:
        for start in range(0, len(images), BATCH):
            labels = images.labels[start : start + BATCH]
            batch = range(start, start + len(labels))
            pixels = cut((images.items[i] for i in batch), preprocess)
            parts.append([run(pixels)["logits"].argmax(1) == labels for run in runs])
            meter.advance(len(labels))
    return [np.concatenate(each) for each in zip(*parts, strict=True)]


def paired(before: np.ndarray, after: np.ndarray) -> Paired:
    """Two models, by the images `n` that each names rightly."""
    lost, gained = int((before & ~after).sum()), int((after & ~before).sum())
    return Paired(len(before), int(before.sum()), lost, gained)


def answers(outputs: Arrays) -> np.ndarray:
    """The labels, or else the first class, `n _`; of a model without a head `n 0`."""
    if "labels" in outputs:
        return outputs["labels"]
    if "logits" in outputs:
        return outputs["logits"].argmax(1)[:, None]
    return outputs["features"][:, :0]


def drawn(preprocess: Preprocess) -> np.ndarray:
    """20 pictures `n h w c` of one seed: noise on 2 to 40 cells a side, smoothly enlarged."""
    random, channels, images = np.random.default_rng(0), preprocess.channels, []
    height, width = preprocess.image_size
    for cells in range(2, 42, 2):
        noise = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        pixels = np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC))
        if channels is not None:  # values of the model's own scale, from the gray of the picture
            gray = (pixels.mean(-1, keepdims=True) / 255 - 0.5) * 4
            pixels = gray * np.asarray(preprocess.std) + np.asarray(preprocess.mean)
            pixels = pixels.astype(np.float32)
        images.append(pixels)
    return np.stack(images)
