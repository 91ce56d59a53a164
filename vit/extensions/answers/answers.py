"""Answers for pictures, read in worker processes and computed in batches.

Shapes: b batch, c channels, h w pixels, k classes.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vit import signals
from vit.console import Meter
from vit.data.decode import ImageError, NamedBytes, open_input
from vit.data.sources import PathList
from vit.extensions.serving.engines import EngineClassifier
from vit.extensions.serving.reading import range_loader, reading_problem
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.preprocessing import Preprocess

Row = dict[str, Any]
"""The answer for one picture, in JSON types: `image`, its name; `top`, objects with `class` and
`probability`, best first; `labels` of a model with several; or else `error`. `features` `d` is an
array."""
Batch = tuple[list[Row], Tensor | None]
"""A row for each picture, with what is wrong with it, and the pixels `b c h w` of the others; None
for none."""


def printable_name(path: str) -> str:
    """The path in one line: a line break as \\n, a byte that is not UTF-8 as \\xe9."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return text.replace("\n", "\\n").replace("\r", "\\r")


@dataclass
class Tally:
    """Pictures that were answered, and seconds that it took."""

    pictures: int = 0
    unreadable: int = 0
    reading: float = 0.0
    """Seconds of waiting for pictures."""
    computing: float = 0.0
    """Seconds of waiting for the model."""

    @property
    def slowest(self) -> str:
        return "reading" if self.reading > self.computing else "computing"

    def __str__(self) -> str:
        if not self.pictures:
            return "no picture was left to answer"
        rate = self.pictures / max(self.reading + self.computing, 1e-9)
        return (
            f"pictures answered: {self.pictures:,}, of them unreadable (column error): "
            f"{self.unreadable:,}; {rate:,.3g} per second; slowest part: {self.slowest}"
        )


def answer(
    classifier: Classifier,
    paths: PathList,
    take: Callable[[list[Row]], None],
    asked: PredictOptions,
    *,
    start: int = 0,
    features: bool = False,
    batch_size: int | None = None,
    num_workers: int | None = None,
    progress: bool = True,
) -> Tally:
    """Gives `take` the rows of the pictures from position `start`, batch by batch, in order.

    A signal ends it when the batches that are begun are taken. `num_workers`: processes that read
    pictures, by default one per core. `batch_size`: by default 32; 8 on a CPU, which is as fast
    there, and sooner done after a signal. Raises UserError for outputs that are not finite.
    """
    engine = classifier if isinstance(classifier, EngineClassifier) else None
    on_cpu = engine is not None or (
        classifier.runtime is None and next(classifier.model.parameters()).device.type == "cpu"
    )
    batch_size = batch_size or (8 if on_cpu else 32)
    total, tally, read = len(paths), Tally(), partial(_read, classifier.preprocess, paths)
    loader = range_loader(read, total, batch_size, start=start, num_workers=num_workers)
    # Cores that share a batch wait for each other in every layer.
    streams = max(min(torch.get_num_threads(), 8, len(loader)), 1) if on_cpu else 1
    answering = classifier if engine is None or streams == 1 else engine.beside(streams)
    rows_of = partial(answered, answering, asked, features)
    with signals.deferred(), Meter("classifying", total, "img") as meter:
        meter.begin(start, total)
        for rows in _computed(rows_of, iter(loader), streams, tally):
            take(rows)
            tally.pictures += len(rows)
            tally.unreadable += sum("error" in row for row in rows)
            if progress:
                meter.show(f"classifying (slowest: {tally.slowest})")
                meter.advance(len(rows))
    return tally


def _computed(
    answers: Callable[[Batch], list[Row]], batches: Iterator[Batch], streams: int, tally: Tally
) -> Iterator[list[Row]]:
    """The rows of each batch that is begun before a signal, in order.

    Adds the seconds of waiting to `tally`.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads // streams)
    waiting: deque[Future[list[Row]]] = deque()
    try:
        with ThreadPoolExecutor(streams) as pool:
            while True:
                start = time.monotonic()
                while len(waiting) <= streams and not signals.received():
                    if (batch := next(batches, None)) is None:
                        break
                    waiting.append(pool.submit(answers, batch))
                read = time.monotonic()
                tally.reading += read - start
                if not waiting:
                    return
                rows = waiting.popleft().result()
                tally.computing += time.monotonic() - read
                yield rows
    finally:
        torch.set_num_threads(threads)


def _read(preprocess: Preprocess, paths: PathList, positions: range) -> Batch:
    return opened_batch(preprocess, map(paths.__getitem__, positions))


def opened_batch(preprocess: Preprocess, sources: Iterable[str | NamedBytes]) -> Batch:
    """Opens and cuts the pictures of a batch."""
    rows: list[Row] = []
    pixels = []
    for source in sources:
        name = source.name if isinstance(source, NamedBytes) else source
        rows.append({"image": printable_name(name)})
        try:
            pixels.append(preprocess(open_input(source, preprocess.channels)))
        except (ImageError, MemoryError) as error:
            rows[-1]["error"] = reading_problem(source, error)
    return rows, torch.stack(pixels) if pixels else None


def answered(
    classifier: Classifier, asked: PredictOptions, features: bool, batch: Batch
) -> list[Row]:
    """The rows of a batch, with the answers."""
    rows, pixels = batch
    if pixels is None:
        return rows
    logits, vectors = classifier.outputs(pixels, features=features or asked.compares_features)
    good = [row for row in rows if "error" not in row]
    for row, prediction in zip(good, classifier.ranked(logits, vectors, asked), strict=True):
        row |= prediction.row(row["image"])
    if features and vectors is not None:
        for row, vector in zip(good, vectors.cpu().numpy(), strict=True):
            row["features"] = vector
    return rows
