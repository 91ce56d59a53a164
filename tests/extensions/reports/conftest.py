"""A finished run on digits, with a mostly correct classifier and a history."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.predictions import answer, few

__all__ = ["answer", "few"]


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

    def save(figure, file, *, format, **_):
        if format == "png":
            return pixel.save(file, "PNG")
        return file.write(b'<svg viewBox="0 0 1 1"><path d=""/></svg>')

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(name="write_history")
def _write_history() -> Callable[..., None]:
    return write_history


SUMMARY = {
    "command": "vit fit -c quickstart",
    "metrics": {"val/acc1": 0.9512, "val/loss": 0.3123, "test/acc1": 0.94, "test/ece": 0.0215},
    "images": {"train": 1437, "val": 181, "test": 122},
    "splits": {"test": "5e" * 16},
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
