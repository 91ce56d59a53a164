"""The thread in which a model computes, batch by batch. Shapes: c channels, h w pixels."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from vit.inference.answers import Prediction, PredictOptions
from vit.inference.classifier import Classifier

Outputs = tuple[Tensor, Tensor | None]
"""Logits `b k`, and features `b d` if an option compares them."""
Picture = tuple[Tensor, PredictOptions, Future[Prediction]]
"""An image `c h w`, as Preprocess cuts it, with its options and its prediction to come."""


class ModelThread:
    """Computes predictions in a thread of its own.

    A batch of one is computed as `Classifier.answers` computes one image, and is equal to it to the
    bit if PyTorch has as many threads there; images of larger batches are equal within rounding.
    """

    def __init__(
        self, classifier: Classifier, batch: int = 1, wait: float = 0.0, threads: int = 1
    ) -> None:
        """Up to `batch` images are computed at once; a smaller batch waits `wait` seconds."""
        self.classifier, self._batch, self._wait = classifier, batch, wait
        self._waiting: deque[Picture] = deque()
        # PyTorch's number belongs to the thread that sets it, before it computes anything.
        self.thread = ThreadPoolExecutor(1, "model", torch.set_num_threads, (threads,))

    def predict(self, pixels: Tensor, options: PredictOptions) -> Future[Prediction]:
        """The prediction for an image; `options` are for the classifier (`PredictOptions.of`).

        One that is cancelled before its batch begins is left out.
        """
        future: Future[Prediction] = Future()
        self._waiting.append((pixels, options, future))
        self.thread.submit(self._compute)
        return future

    def warm_up(self) -> None:
        """Computes the smallest and the largest batch."""
        steps = self.classifier.preprocess
        kind = torch.uint8 if steps.channels is None else torch.float32
        for size in {1, self._batch}:
            pixels = torch.zeros(size, steps.channels or 3, *steps.image_size, dtype=kind)
            self.thread.submit(self.classifier.outputs, pixels).result()

    def _compute(self) -> None:
        if 0 < len(self._waiting) < self._batch:
            time.sleep(self._wait)
        pictures: list[Picture] = []
        while self._waiting and len(pictures) < self._batch:
            picture = self._waiting.popleft()
            if picture[2].set_running_or_notify_cancel():
                pictures.append(picture)
        if pictures:  # else those of this call were in the batch before
            outputs: Future[Outputs] = Future()
            _settle(outputs, lambda: self._outputs(pictures))
            for i, (_, options, future) in enumerate(pictures):
                _settle(future, lambda i=i, o=options: self._prediction(outputs.result(), i, o))

    def _outputs(self, pictures: list[Picture]) -> Outputs:
        pixels, asked, _ = zip(*pictures, strict=True)
        needs_features = any(options.compares_features for options in asked)
        return self.classifier.outputs(torch.stack(pixels), features=needs_features)

    def _prediction(self, outputs: Outputs, i: int, options: PredictOptions) -> Prediction:
        logits, features = (each if each is None else each[i : i + 1] for each in outputs)
        assert logits is not None
        return self.classifier.ranked(logits, features, options)[0]


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)
