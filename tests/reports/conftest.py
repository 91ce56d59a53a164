"""A finished run on digits, with a mostly correct classifier and a history."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from vit.reports.predictions import Predictions


def answer(
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


@pytest.fixture(name="answer", scope="session")
def _answer() -> Callable[..., tuple[Predictions, np.ndarray]]:
    return answer


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


def write_history(path: Path, *, epochs: int = 4, steps: int = 10) -> None:
    """metrics.csv of a run: losses by step, scores by epoch, blanks elsewhere."""
    columns = ["step", "epoch", "images", "lr", "train/loss", "val/loss", "val/acc1", "val/acc5"]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for step in range(1, epochs * steps + 1):
            epoch = (step - 1) // steps
            row = {"step": step, "epoch": epoch, "images": 32 * step}
            writer.writerow({**row, "train/loss": 2 / step, "lr": 0.001 * step / epochs})
            if step % steps == 0:
                scores = {"val/loss": 2.5 / step, "val/acc1": 1 - 1 / step, "val/acc5": 1.0}
                writer.writerow({**row, **scores})


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are built, and saved as one pixel: painting takes a quarter of a second each."""
    pixel = Image.new("RGB", (1, 1))
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: pixel.save(file, "PNG"))


@pytest.fixture(name="write_history")
def _write_history() -> Callable[..., None]:
    return write_history


SUMMARY = {
    "command": "vit fit -c quickstart",
    "metrics": {"val/acc1": 0.9512, "val/loss": 0.3123, "test/acc1": 0.94, "test/ece": 0.0215},
    "images": {"train": 1437, "val": 180, "test": 180},
    "train_seconds": 83.4,
    "parameters": 2687818,
    "recipe": None,
    "checkpoint": {"file": "checkpoints/best.ckpt", "weights": "ema", "epoch": 27},
    "model": {f"field_{i}": i for i in range(20)},
    "versions": {"torch": "2.15.0"},
    "hardware": {"cpu": "A CPU", "gpus": []},
}


@pytest.fixture(scope="session")
def new_run(tmp_path_factory) -> Callable[..., Path]:
    """Makes a run directory before its results are written."""

    def make(**changes: object) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "my photos"
        folder.mkdir()
        write_history(folder / "metrics.csv")
        (folder / "config.yaml").write_text("model:\n  name: vit_ti16 # <b>&\n")
        (folder / "summary.json").write_text(json.dumps(SUMMARY | changes))
        return folder

    return make


@pytest.fixture(scope="session")
def digit() -> Callable[[int], Image.Image]:
    """Opens image i: 8 by 8 pixels of one grey."""
    return lambda i: Image.new("RGB", (8, 8), (i % 256,) * 3)
