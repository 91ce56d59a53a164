"""Table 1 of "Attention Is All You Need", measured: what mixers cost, and how far they see.

    python -m benchmarks.papers.complexity.run

Each mixer of vit.extensions.variants alone, one layer of it, for one image in float32: forward, and
forward and backward, in turns with all others, on one thread; against the number of tokens at one
width, and against the width at one number of tokens, and for the 197 tokens of ViT-S/16 at 224
pixels. Written before the first result, and not changed: sizes and options below. Bytes are those
that autograd keeps for the backward pass, parameters apart. Operations are PyTorch's count on the
meta device, of both passes. The chain is the longest one of operations that wait for each other, in
autograd's graph. The path is the fewest layers (x + mixer(x)) after which every token has a
gradient from every other. An interrupted command goes on where it was.
`--device cuda` measures a GPU.
"""

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.lib.harness import (
    Call,
    arguments,
    build_model,
    document,
    earlier,
    on_device,
    save,
    take_turns,
    target,
)
from vit.extensions.compute.flops import convolution_backward
from vit.extensions.compute.memory import kept_by_autograd
from vit.models.config import ViTConfig
from vit.models.encoder import Place

ARMS: dict[str, dict[str, Any]] = {
    "softmax": {"name": "softmax"},
    "window": {"name": "window", "size": 4},
    "axial": {"name": "axial"},
    "axial, alternate": {"name": "axial", "axes": "alternate"},
    "bigbird": {"name": "bigbird", "block": 8},
    "linformer": {"name": "linformer", "k": 64},
    "rnn": {"name": "rnn"},
    "lstm": {"name": "lstm"},
    "gru": {"name": "gru"},
    "convolution": {"name": "convolution", "kernel": 7},
    "convolution, depthwise": {"name": "convolution", "kernel": 7, "depthwise": True},
    "lightweight": {"name": "lightweight", "kernel": 7},
    "dynamic": {"name": "dynamic", "kernel": 7},
    "synthesizer, dense": {"name": "synthesizer_dense"},
    "synthesizer, random": {"name": "synthesizer_random"},
    "synthesizer, factorized": {"name": "synthesizer_factorized", "k": 8},
}
VIT_S: dict[str, dict[str, Any]] = {**ARMS, "window": {"name": "window", "size": 7}}
"""For 14 x 14 patches, which windows of 4 x 4 do not divide: Swin's windows."""
HEAD = 64
SETTINGS: dict[str, Any] = {
    "arms": ARMS,
    "grids": [[8, 8], [8, 16], [16, 16], [16, 32], [32, 32], [32, 64], [64, 64]],
    "width": 256,
    "widths": [64, 128, 256, 512, 1024],
    "grid": [16, 16],
    "paths": [[8, 8], [8, 16]],
    "rounds": 5,
    "shortest": 0.05,
}
QUICK: dict[str, Any] = {
    **{"grids": [[8, 8], [8, 16]], "widths": [64, 128], "grid": [8, 8], "paths": [[8, 8]]},
    **{"width": 64, "rounds": 2, "shortest": 0.0},
}
QUICK["arms"] = {arm: ARMS[arm] for arm in ("softmax", "window", "bigbird", "rnn")}
LAYERS = 64
"""The most layers of which a path is looked for, a power of 2."""


def mixers(part: dict[str, Any], grid: list[int], width: int, prefix: int, depth: int) -> Any:
    """The mixers of a model's layers, with its initial weights."""
    config = ViTConfig(
        image_size=(8 * grid[0], 8 * grid[1]), patch_size=8, num_classes=0, width=width,
        depth=depth, mlp_dim=1, num_heads=max(1, width // HEAD), variant={"mixer": part},
        **({"class_token": True} if prefix else {"class_token": False, "pool": "gap"}),
    )  # fmt: skip
    return [block.attn for block in build_model(config).blocks]


def calls(mixer: nn.Module, x: torch.Tensor, place: Place) -> dict[str, Call]:
    """The measured ones."""

    def forward() -> None:
        with torch.no_grad():
            mixer(x, place)

    def both() -> None:
        mixer(x, place).sum().backward()
        mixer.zero_grad()

    return {"forward": forward, "both": both}


def operations(part: dict[str, Any], grid: list[int], width: int, prefix: int) -> int:
    """Of both passes, counted on the meta device."""
    [mixer] = mixers(part, grid, width, prefix, 1)
    tokens = grid[0] * grid[1] + prefix
    x = torch.empty(1, tokens, width, device="meta", requires_grad=True)
    rules = {torch.ops.aten.convolution_backward: convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=rules) as counter:
        mixer.to("meta")(x, Place(*grid, prefix)).sum().backward()
    return counter.get_total_flops()


def chain(part: dict[str, Any], grid: list[int], width: int) -> int:
    """Operations in the longest chain of autograd's graph, which has each step of a recurrence on
    the meta device."""
    [mixer] = mixers(part, grid, width, 0, 1)
    x = torch.empty(1, grid[0] * grid[1], width, device="meta", requires_grad=True)
    last = mixer.to("meta")(x, Place(*grid, 0)).grad_fn
    lengths: dict[Any, int] = {None: 0}
    stack = [last]
    while stack:
        node = stack[-1]
        before = [node_before for node_before, _ in node.next_functions]
        missing = [other for other in before if other not in lengths]
        stack += missing
        if not missing:
            lengths[stack.pop()] = 1 + max((lengths[other] for other in before), default=0)
    return lengths[last]


def path(part: dict[str, Any], grid: list[int], width: int) -> int | None:
    """The fewest layers after which all tokens depend on all; None if LAYERS are too few."""
    tokens, place = grid[0] * grid[1], Place(*grid, 0)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(1, tokens, width, generator=generator, dtype=torch.float64)
    torch.manual_seed(0)
    layers = [mixer.double() for mixer in mixers(part, grid, width, 0, LAYERS)]

    def complete(depth: int) -> bool:
        x = y = start.clone().requires_grad_()
        for mixer in layers[:depth]:
            y = y + mixer(y, place)
        for token in range(tokens):
            [gradient] = torch.autograd.grad(y[0, token].sum(), x, retain_graph=True)
            if not gradient[0].any(-1).all():
                return False
        return True

    high = 1
    while not complete(high):
        if high == LAYERS:
            return None
        high *= 2
    low = high // 2  # complete at high, not at low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if complete(middle) else (middle, high)
    return high


def measure(point: dict[str, Any], settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Of all mixers at one size: the seconds of each round, bytes and operations."""
    grid, width, prefix = point["grid"], point["width"], point["prefix"]
    parts = VIT_S if prefix else ARMS
    tokens, place = grid[0] * grid[1] + prefix, Place(*grid, prefix)
    torch.manual_seed(0)
    rows, turns = {}, {}
    for arm in settings["arms"]:
        part = parts[arm]
        [mixer] = mixers(part, grid, width, prefix, 1)
        x = torch.randn(1, tokens, width, device=device).requires_grad_()
        with kept_by_autograd(mixer.to(device)) as kept:
            mixer(x, place)
        rows[arm] = {
            "bytes": sum(storage.nbytes() for storage in kept),
            "operations": operations(part, grid, width, prefix),
        }
        del kept
        turns |= {(arm, way): call for way, call in calls(mixer, x, place).items()}
    title = f"{tokens} tokens, width {width}"
    found = take_turns(title, turns, settings["rounds"], device, settings["shortest"])
    for (arm, way), times in found.items():
        rows[arm][way] = list(times.values)
    return {**point, "tokens": tokens, "arms": rows}


def points(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """All sizes; the smallest first."""
    across = [("tokens", grid, settings["width"], 0) for grid in settings["grids"]]
    across += [("width", settings["grid"], width, 0) for width in settings["widths"]]
    across.append(("vit_s16", [14, 14], 384, 1))
    return [dict(zip(("axis", "grid", "width", "prefix"), p, strict=True)) for p in across]


def paths(settings: dict[str, Any], arm: str) -> dict[str, Any]:
    """How far a mixer sees, and how long its chain is, at the sizes for it."""
    return {
        "arm": arm,
        "sizes": [
            {
                "tokens": grid[0] * grid[1],
                "layers": path(ARMS[arm], grid, HEAD),
                "chain": chain(ARMS[arm], grid, HEAD),
            }
            for grid in settings["paths"]
        ],
    }


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="or cuda")
    options = parser.parse_args(words)
    settings = QUICK if options.quick else SETTINGS
    file = target(options, on_device("papers/complexity/results", options.device))
    known = {"rows": [], "paths": [], "seconds": []} | earlier(file, settings=settings)
    found = {name: known[name] for name in ("rows", "paths", "seconds")}
    torch.set_num_threads(1)

    def content() -> dict[str, Any]:
        facts = {"settings": settings, "seconds": found["seconds"], "paths": found["paths"]}
        return document("complexity", found["rows"], **facts)

    def keep(kind: str, began: float, row: dict[str, Any]) -> None:
        found[kind].append(row)
        found["seconds"].append(round(time.process_time() - began, 1))
        save(content(), file)

    for arm in settings["arms"]:
        if arm not in {row["arm"] for row in found["paths"]}:
            print(f"path of {arm}", file=sys.stderr, flush=True)
            keep("paths", time.process_time(), paths(settings, arm))
    for point in points(settings):
        if point not in [{key: row[key] for key in point} for row in found["rows"]]:
            keep("rows", time.process_time(), measure(point, settings, options.device))
    return content()


if __name__ == "__main__":
    main()
