"""Small towers of timm with random weights, and what they give for a photo."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image

from benchmarks.parity.families import scatter
from vit.extensions.backbones.image_transform import ImageTransform
from vit.preprocessing import Preprocess
from vit.weights.report import LoadReport

SMALL = {"embed_dim": 128, "num_heads": 4}
"""Sizes in place of those of a name."""


def patch_of(name: str) -> int:
    """Side of a patch, in pixels."""
    return int(name.split("patch")[1].split("_")[0])


def saved(name: str, folder: Path, **options: Any) -> Any:
    """timm's model with random weights, saved as timm saves it."""
    from timm.models import save_for_hf

    model = scatter(timm.create_model(name, **options))
    save_for_hf(model, str(folder), safe_serialization=True)
    return model


def described_as(folder: Path, name: str, changes: dict[str, Any], **options: Any) -> Path:
    """A saved model whose config.json says something else of its arguments."""
    saved(name, folder, **options)
    values = json.loads((folder / "config.json").read_text())
    values["model_args"].update(changes)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def photo() -> Image.Image:
    """A photo whose sides are no multiples of a patch."""
    noise = np.random.default_rng(0).integers(0, 256, (9, 7, 3)).astype(np.uint8)
    return Image.fromarray(noise).resize((131, 97), Image.Resampling.BICUBIC)


def prepared(folder: Path, report: LoadReport) -> tuple[torch.Tensor, torch.Tensor]:
    """The photo as this package prepares it for the weights in a folder, and as timm does."""
    described = json.loads((folder / "config.json").read_text())["pretrained_cfg"]
    config = timm.data.resolve_data_config({}, pretrained_cfg=described)
    assert report.preprocess is not None
    ours = ImageTransform(Preprocess.from_dict(report.preprocess))(photo())
    return ours[None], timm.data.create_transform(**config)(photo())[None]


def in_float64(model: Any) -> Any:
    """timm's model with weights and angles in float64; by itself it computes these in float32."""
    model = model.double()
    rope = getattr(model, "rope", None)
    if rope is not None:
        shape = model.patch_embed.grid_size
        rope.pos_embed = rope._build_embed_cat(shape, rope.bands, dtype=torch.float64)
    return model


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor, share: float = 1e-5) -> None:
    """The largest difference is at most this share of the largest output."""
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() <= share * theirs.abs().max()
