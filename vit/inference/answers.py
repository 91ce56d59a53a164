"""Answers for pictures, read in worker processes and computed in batches.

Shapes: b batch, c channels, h w pixels, k classes.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vit import signals
from vit.checkpoints.native import fingerprint
from vit.console import Meter
from vit.data.decode import ImageError, open_input, printable_path
from vit.data.loaders import MAX_WORKERS, start_worker
from vit.data.sources import PathList
from vit.hardware import available_cores
from vit.inference.answer_files import Row, printable_name
from vit.inference.classifier import Asked, Classifier, Prediction
from vit.preprocessing import Preprocess

Batch = tuple[list[str], list[str | None], Tensor | None]
"""Paths, what is wrong with each picture, and the pixels `b c h w` of the others; None for none."""


@dataclass
class Tally:
    """What was done, and the seconds that it took."""

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
            f"{self.unreadable:,}; {rate:,.3g} a second; slowest part: {self.slowest}"
        )


def columns(classifier: Classifier, asked: Asked, *, features: bool) -> list[str]:
    """Names of the cells of a row: image, class, probability, class_2, probability_2, ..."""
    count = min(asked.top, len(classifier.classes))
    best = ["class", "probability"]
    best += [f"{name}_{i}" for i in range(2, count + 1) for name in best[:2]]
    labels = ["labels"] if classifier.multilabel else []
    labels += ["set"] if asked.coverage is not None else []
    labels += ["unknown"] if asked.unknown is not None else []
    labels += ["answer", "answer_probability"] if asked.confidence is not None else []
    return ["image", *best, *labels, "error", *(["features"] if features else [])]


def identity(classifier: Classifier) -> str:
    """A digest of all that answers depend on, besides the pictures and the precision."""
    engine = classifier.engine
    facts = [
        classifier.classes,
        classifier.preprocess.to_dict(),
        classifier.thresholds if classifier.multilabel else None,
        classifier.temperature,
        engine and engine.name,
        engine.identity() if engine else fingerprint(classifier.model.state_dict()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def answer(
    classifier: Classifier,
    paths: PathList,
    take: Callable[[list[Row]], None],
    asked: Asked,
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
    on_cpu = classifier.engine is None and next(classifier.model.parameters()).device.type == "cpu"
    batch_size = batch_size or (8 if on_cpu else 32)
    total, tally = len(paths), Tally()
    batches = -(-(total - start) // batch_size)
    # Cores that share a batch wait for each other in every layer.
    streams = max(min(torch.get_num_threads(), 8, batches), 1) if on_cpu else 1
    if num_workers is None:  # none for one batch, which waits for nothing
        num_workers = min(available_cores(), MAX_WORKERS, max(batches - 1, 0))
    loader = DataLoader(
        _Pictures(paths, classifier.preprocess),
        batch_size=None,
        sampler=(range(i, min(i + batch_size, total)) for i in range(start, total, batch_size)),
        num_workers=num_workers,
        worker_init_fn=start_worker,
    )
    rows_of = partial(_rows, classifier, asked, features)
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


def _rows(classifier: Classifier, asked: Asked, features: bool, batch: Batch) -> list[Row]:
    paths, problems, pixels = batch
    good: Iterator[tuple[Prediction, Tensor | None]] = iter(())
    if pixels is not None:
        needed = features or asked.unknown is not None
        logits, vectors = classifier.outputs(pixels, features=needed)
        predictions = classifier.ranked(logits, vectors, asked)
        vectors = vectors.cpu() if features and vectors is not None else [None] * len(pixels)
        good = zip(predictions, vectors, strict=True)
    rows = []
    for path, problem in zip(paths, problems, strict=True):
        row: Row = {"image": printable_name(path)}
        if problem is not None:
            row["error"] = problem
        else:
            prediction, vector = next(good)
            if prediction.answer_probability is not None:
                row["answer"] = prediction.answer
                row["answer_probability"] = _short(prediction.answer_probability)
            for name in ("unknown", "labels", "set"):
                if (said := getattr(prediction, name)) is not None:
                    row[name] = said
            pairs = zip(prediction.classes, prediction.probabilities, strict=True)
            row["top"] = [{"class": c, "probability": _short(p)} for c, p in pairs]
            if vector is not None:
                row["features"] = vector.numpy()
        rows.append(row)
    return rows


def _short(probability: float) -> float:
    return float(f"{probability:.6g}")


@dataclass
class _Pictures(Dataset[Batch]):
    """The pictures at a range of positions."""

    paths: PathList
    preprocess: Preprocess

    def __getitem__(self, positions: range) -> Batch:
        paths, problems, pixels = [self.paths[i] for i in positions], [], []
        for path in paths:
            problem = None
            try:
                pixels.append(self.preprocess(open_input(path, self.preprocess.channels)))
            except ImageError as error:
                problem = str(error).removeprefix(f"{printable_path(path)}: ")
            except MemoryError:
                problem = "not enough memory to open it"
            problems.append(problem)
        return paths, problems, torch.stack(pixels) if pixels else None
