"""Predictions for a set of images, made up."""

from collections.abc import Callable

import numpy as np
import pytest

from vit.runs.predictions import Predictions


def make_answer(
    num_images: int = 120, num_classes: int = 10, *, strength: float = 4.0, multilabel: bool = False
) -> tuple[Predictions, np.ndarray]:
    """Predictions and their probabilities (n, k). The higher `strength`, the fewer are wrong."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(num_images, num_classes)).astype(np.float32)
    rows = np.arange(num_images)
    if multilabel:
        labels = (rng.random((num_images, num_classes)) < 0.3).astype(np.int64)
        probabilities = 1 / (1 + np.exp(1.5 - logits - strength * labels))
        true = (probabilities * labels).sum(1) / labels.sum(1).clip(1)
    else:
        labels = rng.integers(0, num_classes, num_images)
        logits[rows, labels] += strength
        probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        true = probabilities[rows, labels]
    order = np.argsort(-probabilities, axis=1)[:, : num_classes if multilabel else 5]
    predictions = Predictions(
        indices=rows,
        names=[f"photos/{i:03}.jpg" for i in rows],
        labels=labels,
        top_classes=order,
        top_probabilities=np.take_along_axis(probabilities, order, axis=1),
        label_probabilities=true,
    )
    return predictions, probabilities


@pytest.fixture(scope="session")
def answer() -> Callable[..., tuple[Predictions, np.ndarray]]:
    """Makes predictions and their probabilities (n, k)."""
    return make_answer


@pytest.fixture(scope="session")
def few() -> Callable[..., Predictions]:
    """Three images of two classes: right, wrong, wrong with more confidence."""
    given = {
        "indices": np.array([0, 1, 2]),
        "names": ["a.jpg", "b.jpg", "c.jpg"],
        "labels": np.array([0, 1, 0]),
        "top_classes": np.array([[0, 1], [0, 1], [1, 0]]),
        "top_probabilities": np.array([[0.9, 0.1], [0.7, 0.3], [0.8, 0.2]]),
        "label_probabilities": np.array([0.9, 0.3, 0.2]),
    }
    return lambda **changes: Predictions(**(given | changes))
