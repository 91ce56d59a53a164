"""A set of tiny training_photos, a model of a few thousand weights, a silent Trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.callbacks import Callback
from PIL import Image

from tests.grouped import image_classifier, image_data, silent_trainer
from vit.data.module import ImageData, InputFormat
from vit.data.transforms import TrainTransform
from vit.training.image_classifier import ImageClassifier
from vit.weights.native import save_native

SIZES = {"train": (16, 15, 13), "val": (3, 3, 3), "test": (3, 3, 1)}


@pytest.fixture(scope="session")
def training_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """44 training, 9 val and 7 test images of three classes, 10 x 12 pixels, noise on a colour."""
    root = tmp_path_factory.mktemp("training_photos")
    random = np.random.default_rng(0)
    for split, counts in SIZES.items():
        for label, count in enumerate(counts):
            folder = root / split / "abc"[label]
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 160, (12, 10, 3), dtype=np.uint8)
                pixels[..., label] += 60
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


@pytest.fixture
def make_data(training_photos: Path) -> Callable[..., ImageData]:
    """Data without augmentation, in batches of 8, read by this process."""

    def make(**options: Any) -> ImageData:
        fixed: dict[str, Any] = {
            "root": str(training_photos),
            "image_size": 8,
            "batch_size": 8,
            "num_workers": 0,
            "seed": 3,
            "augment": TrainTransform(crop="none", flip=False),
            "inputs": InputFormat(crop_fraction=1.0),
        }
        return image_data(**{**fixed, **options})

    return make


@pytest.fixture
def make_model() -> Callable[..., ImageClassifier]:
    """A ViT of two layers for three classes of 8 x 8 pixels, initialised from `init_seed`."""

    def make(*, init_seed: int = 0, architecture: Any = None, **options: Any) -> ImageClassifier:
        seed_everything(init_seed, verbose=False)
        sizes = {"patch_size": 4, "width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
        return image_classifier(
            "vit_ti16",
            architecture={**sizes, **(architecture or {})},
            **{"num_classes": 3, "image_size": 8, **options},
        )

    return make


@pytest.fixture
def save_weights(make_model: Callable[..., ImageClassifier], tmp_path: Path) -> Callable[..., str]:
    """Saves a model of random weights for classes of these letters; the folder."""

    def save(classes: str) -> str:
        model = make_model(init_seed=1, num_classes=len(classes)).model
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        save_native(tmp_path / classes, model, classes=list(classes), preprocess=None, extra={})
        return str(tmp_path / classes)

    return save


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """A Trainer on the CPU that prints and logs nothing."""

    def make(**options: Any) -> Trainer:
        return silent_trainer(**{"default_root_dir": str(tmp_path), **options})

    return make


class Losses(Callback):
    """The loss of every batch in hexadecimal, by the samples consumed before it."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.hex: dict[int, str] = {}
        self.stop_after = stop_after

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self._position = trainer.datamodule.consumed_samples

    def on_train_batch_end(self, trainer: Any, model: Any, outputs: Any, *_: Any) -> None:
        self.hex[self._position] = outputs["loss"].item().hex()
        if self.stop_after is not None and len(self.hex) > self.stop_after:
            raise KilledError


class KilledError(RuntimeError):
    """Stands for a process that dies."""


@pytest.fixture
def losses() -> type[Losses]:
    return Losses


@pytest.fixture
def continues_bitwise(tmp_path: Path) -> Callable[..., Path]:
    """Checks `run(callback, resume=None) -> module`, which keeps checkpoints `step=*.ckpt` below
    `tmp_path`, is killed after `batches` and resumed. The checkpoint that it was resumed from."""

    def check(run: Callable[..., torch.nn.Module], batches: int) -> Path:
        expected = run(whole := Losses()).state_dict()
        for file in tmp_path.rglob("step=*.ckpt"):
            file.unlink()
        with pytest.raises(KilledError):
            run(Losses(stop_after=batches))
        last = max(tmp_path.rglob("step=*.ckpt"), key=lambda file: int(file.stem[len("step=") :]))
        consumed = torch.load(last, weights_only=True)["ImageData"]["consumed_samples"]
        actual = run(rest := Losses(), resume=last).state_dict()
        assert 0 < len(rest.hex) < len(whole.hex)
        assert rest.hex == {at: loss for at, loss in whole.hex.items() if at >= consumed}
        for name, value in expected.items():
            assert torch.equal(value, actual[name]), name
        return last

    return check


@pytest.fixture
def snapshot() -> Callable[[torch.nn.Module], dict[str, torch.Tensor]]:
    """A copy of a module's state dict."""
    return lambda model: {name: value.clone() for name, value in model.state_dict().items()}
