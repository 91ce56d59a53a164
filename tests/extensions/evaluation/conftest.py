"""Small sets of noisy colours on disk, and a model of a few thousand weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.grouped import image_data
from tests.models.small_models import filled
from vit.data.module import ImageData
from vit.models.config import ViTConfig
from vit.models.vision_transformer import VisionTransformer
from vit.preprocessing import Preprocess

SIZES = {"train": (9, 8, 7), "test": (4, 3, 5)}


@pytest.fixture
def labelled_photos(tmp_path: Path) -> Path:
    """24 training and 12 test images of three colours, 18 x 14 pixels."""
    root = tmp_path / "labelled_photos"
    random = np.random.default_rng(0)
    for split, counts in SIZES.items():
        for channel, (name, count) in enumerate(zip(("red", "green", "blue"), counts, strict=True)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 160, (14, 18, 3), dtype=np.uint8)
                pixels[..., channel] += 60
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return root


@pytest.fixture
def make_data(labelled_photos: Path) -> Callable[..., ImageData]:
    """The photos at 16 x 16, in batches of 5, read by this process; train is whole."""

    def make(**options: Any) -> ImageData:
        preprocess = options.pop("preprocess", Preprocess(image_size=(16, 16), crop_fraction=1.0))
        fixed: dict[str, Any] = {
            "root": str(labelled_photos),
            "image_size": preprocess.image_size,
            "batch_size": 5,
            "num_workers": 0,
            "val_fraction": 0.0,
        }
        data = image_data(**{**fixed, **options})
        data.preprocess = preprocess
        return data

    return make


@pytest.fixture
def make_model() -> Callable[..., VisionTransformer]:
    """A ViT of one layer for three classes of 16 x 16 pixels, every parameter random."""

    def make(**changes: Any) -> VisionTransformer:
        fields: dict[str, Any] = {
            "image_size": (16, 16),
            "patch_size": 8,
            "width": 12,
            "depth": 1,
            "mlp_dim": 16,
            "num_heads": 2,
            "num_classes": 3,
        }
        return filled(VisionTransformer(ViTConfig(**{**fields, **changes})))

    return make
