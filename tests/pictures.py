"""Pictures for tests, and a folder with copies."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from vit.extensions.datacheck.check import SIDE


def soft(seed: int, side: int = 160) -> Image.Image:
    """A gray picture of soft shapes."""
    noise = np.random.default_rng(seed).integers(0, 256, (side, side), dtype=np.uint8)
    soft = Image.fromarray(noise).filter(ImageFilter.GaussianBlur(side / 16))
    pixels = np.asarray(soft, dtype=float)
    return Image.fromarray(np.uint8(255 * (pixels - pixels.min()) / np.ptp(pixels)))


def small(*pictures: Image.Image) -> np.ndarray:
    size, kind = (SIDE, SIDE), Image.Resampling.BILINEAR
    return np.stack([np.asarray(picture.resize(size, kind)) for picture in pictures])


def scene(seed: int, width: int = 300, height: int = 280) -> Image.Image:
    """A picture of sharp blocks and noise."""
    random = np.random.default_rng(seed)
    blocks = random.integers(20, 230, (7, 5, 3)).repeat(height // 7, 0).repeat(width // 5, 1)
    return Image.fromarray(np.uint8(blocks + random.integers(0, 20, blocks.shape)))


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    """A picture whose every pixel is drawn."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encoded(picture: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """train, val and test with copies among and within them."""
    root = tmp_path / "copied"
    for number, split in enumerate(["train"] * 8 + ["val"] * 4 + ["test"] * 4):
        (root / split / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        place = root / split / "ab"[number % 2] / f"{number:02}.jpg"
        place.write_bytes(encoded(scene(number)))
    for number, copy in ((12, "train/a/same.jpg"), (2, "train/a/again.jpg"), (8, "train/b/v.jpg")):
        (root / copy).write_bytes(encoded(scene(number)))
    flipped = scene(13).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    (root / "val/b/mirrored.jpg").write_bytes(encoded(flipped, quality=50))
    (root / "train/b/smaller.png").write_bytes(encoded(scene(1).resize((150, 140)), "PNG"))
    return root
