"""Exports every part, and compiles it: for a grid that is not that of its tables, if it takes one.

The last line printed is {case: relative error} as JSON.

A script, because the shape checks of the test run cannot be traced. All parts are one graph, as
most of the time is spent before the first one.
"""

import json
from typing import Any

import torch
from torch import Tensor, nn

from tests.extensions.variants.test_contract import ENTRIES
from tests.models.small_models import SMALL, filled, random_images, relative_error
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

PARTS = [*ENTRIES]


class Parts(nn.Module):
    """A model of one layer, or of a stack of two, for each of these parts."""

    def __init__(self, parts: list[tuple[str, str]]) -> None:
        super().__init__()
        fields: dict[str, Any] = {**SMALL, "num_registers": 1}
        configs = (
            ViTConfig(
                **{**fields, "depth": 1 + (kind == "stack")},
                variant={kind: {"name": name, **ENTRIES[kind, name].options}},
            )
            for kind, name in parts
        )
        self.models = nn.ModuleList(map(build_model, configs))

    def forward(self, images: Tensor) -> list[Tensor]:
        return [model(images) for model in self.models]


if __name__ == "__main__":
    torch.set_num_threads(1)
    small, large = random_images(2, 3, 32, 32), random_images(2, 3, 48, 32)
    parts = {"export": PARTS, "compile": [key for key in PARTS if ENTRIES[key].other is None]}
    parts["other grid"] = [key for key in PARTS if ENTRIES[key].other is not None]
    models = {way: filled(Parts(keys)) for way, keys in parts.items()}
    at_home = torch.compile(models["compile"], fullgraph=True, backend="eager")
    moved = torch.compile(models["other grid"], fullgraph=True, backend="eager")
    outputs = {
        "export": torch.export.export(models["export"], (small,)).module()(small),
        "compile": at_home(small),
        "other grid": moved(large),  # than that of the tables
    }
    errors = {
        f"{kind} {name} {way}": relative_error(ours, expected)
        for way, images in (("export", small), ("compile", small), ("other grid", large))
        for (kind, name), ours, expected in zip(
            parts[way], outputs[way], models[way](images), strict=True
        )
    }
    print(json.dumps(errors))
