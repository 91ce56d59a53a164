"""Counts of a server for Prometheus."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vit.inference.answers import Prediction

MAX_CLASSES = 100
"""Classes that are counted by name; each is a time series of its own."""


class Metrics:
    """Requests by path and status, seconds of answers, and classes of predictions."""

    def __init__(self, queue: int, taken: Callable[[], int]) -> None:
        """`queue`: most pictures in hand; `taken`: how many there are."""
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        self._requests = counter("vit_requests", "By status.", ["path", "status"])
        self._pictures = counter("vit_pictures", "By most probable class.", ["class"])
        self._others = counter("vit_pictures_other", "Of further classes.")
        self._judged = counter("vit_judged", "Pictures asked with unknown=.", ["unknown"])
        self.unreadable = counter("vit_unreadable", "Pictures.")
        self.seconds = Histogram(
            "vit_classify_seconds", "Of requests to /classify.", registry=self._registry
        )
        now = Gauge("vit_queue_pictures", "In hand.", registry=self._registry)
        now.set_function(taken)
        Gauge("vit_queue_limit", "Most of them.", registry=self._registry).set(queue)
        for word in ("true", "false"):  # so that the share is 0 at first
            self._judged.labels(word)
        self._classes: set[str] = set()

    def add_request(self, path: str, status: int) -> None:
        """Counts a request; paths that the server has not are one."""
        self._requests.labels(path if status not in (404, 403) else "", status).inc()

    def add(self, prediction: Prediction) -> None:
        """Counts the most probable class, and whether the image is of none of them."""
        if len(self._classes) < MAX_CLASSES:
            self._classes.add(prediction.label)
        known = prediction.label in self._classes
        (self._pictures.labels(prediction.label) if known else self._others).inc()
        if (unknown := vars(prediction).get("unknown")) is not None:
            self._judged.labels(str(unknown).lower()).inc()

    def text(self) -> bytes:
        """All counts, a line each."""
        return generate_latest(self._registry)
