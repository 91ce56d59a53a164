"""Compiles and exports the backbones; the last line printed is {case: relative error} as JSON.

A script, because the shape checks of the test run cannot be traced.
"""

import json
from typing import Any
from unittest import mock

import torch

from tests.models.small_models import BACKBONES, random_images, relative_error
from vit.models import attention

# Captures and differentiates the graph as Inductor would, without a minute of C++ compilation.
BACKEND = "aot_eager"

# Tracing time grows with the layers; one of each kind is enough.
FIELDS: dict[str, dict[str, Any]] = {
    "vit": {"depth": 2},
    "rotary": {"depth": 1},
    "hybrid": {"stem_depths": (1,), "patch_size": 8, "depth": 1},
    "bit": {"depths": (1, 1)},
}


def built(name: str, **fields: Any) -> Any:
    return BACKBONES[name](**FIELDS[name], **fields)


def compiled(call: Any, backend: str = BACKEND) -> Any:
    torch.compiler.reset()  # the models share code, and its recompilations are limited
    return torch.compile(call, fullgraph=True, backend=backend)


def gradient(model: Any, call: Any, images: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    model.zero_grad()
    call(images).float().square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def gradient_error(model: Any, images: torch.Tensor, backend: str = BACKEND) -> float:
    expected = gradient(model, model, images)
    with mock.patch.object(attention, "_Products", None):  # compiled code has PyTorch's attention
        return relative_error(gradient(model, compiled(model, backend), images), expected)


def export_error(model: Any, dtype: torch.dtype) -> float:
    """With another batch size than it is traced with."""
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    half = model.to(dtype)
    pixels = random_images(2, 3, 64, 64, dtype=dtype)
    program = torch.export.export(half, (pixels,), dynamic_shapes=batch)
    more = random_images(5, 3, 64, 64, dtype=dtype, seed=9)
    with torch.no_grad():
        return relative_error(program.module()(more), half(more))


def cases() -> dict[str, float]:
    images, errors = random_images(2, 3, 64, 64), {}
    for name in BACKBONES:
        errors[f"{name} compile"] = gradient_error(built(name), images)
        errors[f"{name} export"] = export_error(built(name), torch.float32)
    # "eager" draws the same numbers.
    model = built("rotary", drop_path=0.5, dropout=0.5).train()
    errors["rotary training"] = gradient_error(model, images, "eager")
    errors["rotary export_bfloat16"] = export_error(built("rotary"), torch.bfloat16)
    model = built("vit")
    layers = compiled(model.intermediate_layers)(images, [0, 1])
    pairs = zip(layers, model.intermediate_layers(images, [0, 1]), strict=True)
    errors["vit layers"] = max(relative_error(a, b) for a, b in pairs)
    errors["vit compile_bfloat16"] = gradient_error(built("vit").bfloat16(), images.bfloat16())
    return errors


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(cases()))
