"""Architectures by torch.hub."""

from pathlib import Path

import torch

import vit

ROOT = str(Path(__file__).parents[1])


def test_architectures_are_entries_of_torch_hub() -> None:
    for name in ("vit_ti16", "r50_vit_b16", "bit_r50x1"):
        assert name in vit.list_models()
        with torch.device("meta"):
            model = torch.hub.load(ROOT, name, source="local", num_classes=3)
        assert model.config == vit.create_model(name, num_classes=3).config  # pyright: ignore
