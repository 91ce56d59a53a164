"""Compiles and exports every backbone; the last line printed is {case: relative error} as JSON.

A script, because the shape checks of the test run cannot be traced.
"""

import json
import sys
from typing import Any
from unittest import mock

import torch

from tests.models.small_models import BACKBONES, random_images, relative_error
from vit.models import attention

# Captures and differentiates the graph as Inductor would, without a minute of C++ compilation.
BACKEND = "aot_eager"

# Tracing time grows with the layers; two of each kind are enough.
FIELDS: dict[str, dict[str, Any]] = {
    "vit": {"depth": 2},
    "rotary": {"depth": 2},
    "hybrid": {"stem_depths": (1,), "patch_size": 8, "depth": 2},
    "bit": {"depths": (1, 1)},
}


def built(name: str, **fields: Any) -> Any:
    return BACKBONES[name](**FIELDS[name], **fields)


def gradient_of(model: Any, call: Any, images: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    call(images).float().square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def training_error(name: str, images: torch.Tensor) -> float:
    """In training mode, with everything random switched on; "eager" draws the same numbers."""
    random = {} if name == "bit" else {"drop_path": 0.5, "dropout": 0.5}
    model = built(name, **random).train()
    gradients = []
    for call in (model, torch.compile(model, fullgraph=True, backend="eager")):
        torch.manual_seed(0)
        gradients.append(gradient_of(model, call, images))
    return relative_error(gradients[1], gradients[0])


def cases(name: str) -> dict[str, float]:
    torch.compiler.reset()  # the models share code, and its recompilations are limited
    images, found = random_images(2, 3, 64, 64), {}
    model = built(name)
    compiled = torch.compile(model, fullgraph=True, backend=BACKEND)
    with torch.no_grad():
        found["compile"] = relative_error(compiled(images), model(images))
    found["compile_gradient"] = relative_error(
        gradient_of(model, compiled, images), gradient_of(model, model, images)
    )
    found["compile_training"] = training_error(name, images)
    layers = torch.compile(model.intermediate_layers, fullgraph=True, backend=BACKEND)
    pairs = zip(layers(images, [0, 1]), model.intermediate_layers(images, [0, 1]), strict=True)
    found["compile_layers"] = max(relative_error(a, b) for a, b in pairs)

    batch = {"images": {0: torch.export.Dim("batch", min=1, max=64)}}
    for suffix, dtype in (("", torch.float32), ("_bfloat16", torch.bfloat16)):
        half, pixels = built(name).to(dtype), images.to(dtype)
        program = torch.export.export(half, (pixels,), dynamic_shapes=batch)
        more = random_images(5, 3, 64, 64, seed=9).to(dtype)
        exported = program.module()(more)
        with torch.no_grad():
            found[f"export{suffix}"] = relative_error(exported, half(more))

    half = built(name).bfloat16()
    compiled = torch.compile(half, fullgraph=True, backend=BACKEND)
    pixels = images.bfloat16()
    eager = gradient_of(half, half, pixels)
    with mock.patch.object(attention, "_Products", None):  # compiled code has PyTorch's attention
        found["compile_bfloat16"] = relative_error(gradient_of(half, compiled, pixels), eager)
    return {f"{name} {case}": error for case, error in found.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({k: v for name in sys.argv[1:] or BACKBONES for k, v in cases(name).items()}))
