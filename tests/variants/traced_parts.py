"""Compiles and exports every part; the last line printed is {case: relative error} as JSON.

A script, because the shape checks of the test run cannot be traced. All parts are one graph, as
most of the time is spent before the first one.
"""

import json
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.models.config import ViTConfig
from vit.models.zoo import build_model
from vit.variants.table import POSITIONS


class Parts(nn.Module):
    """A model of one layer for each part."""

    def __init__(self) -> None:
        super().__init__()
        fields: dict[str, Any] = {**SMALL, "depth": 1, "num_registers": 1}
        kinds = [{"positions": {"name": name}} for name in POSITIONS]
        self.models = nn.ModuleList(build_model(ViTConfig(**fields, variant=v)) for v in kinds)

    def forward(self, images: Tensor) -> list[Tensor]:
        return [model(images) for model in self.models]


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts, small, large = filled(Parts()), random_images(2, 3, 32, 32), random_images(2, 3, 64, 32)
    compiled = torch.compile(parts, fullgraph=True, backend="eager")
    results = [
        ("export", torch.export.export(parts, (small,)).module()(small), parts(small)),
        ("compile", compiled(small), parts(small)),
        ("resampled", compiled(large), parts(large)),  # for another grid than that of the tables
    ]
    errors = {
        f"{name} {way}": relative_error(a, b)
        for way, ours, expected in results
        for name, a, b in zip(POSITIONS, ours, expected, strict=True)
    }
    print(json.dumps(errors))
