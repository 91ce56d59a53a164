"""The thread in which a model computes, batch by batch. Shapes: c channels, h w pixels."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from vit.inference.answers import Prediction, PredictOptions
from vit.inference.classifier import Classifier

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
        if not pictures:  # those of this call were in the batch before
            return
        try:
            for (*_, future), answer in zip(pictures, self._predictions(pictures), strict=True):
                future.set_result(answer)
        except Exception as error:
            for *_, future in pictures:
                future.set_exception(error)

    def _predictions(self, pictures: list[Picture]) -> list[Prediction]:
        pixels, asked, _ = zip(*pictures, strict=True)
        needs_features = any(options.compares_features for options in asked)
        logits, features = self.classifier.outputs(torch.stack(pixels), features=needs_features)
        results = []
        for i, options in enumerate(asked):
            vectors = None if features is None else features[i : i + 1]
            results += self.classifier.ranked(logits[i : i + 1], vectors, options)
        return results
