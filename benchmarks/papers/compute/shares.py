"""Shares of the processor's peak that ViTs and BiTs of equal operations reach.

    python -m benchmarks.papers.compute.shares

The ViT paper counts operations and core-days. This asks how much of the second is the hardware's:
forward passes and training steps of pairs that Table 6 gives about the same
operations, in turns with one large matrix product, whose rate is taken for the peak. One thread;
bfloat16 where the processor computes it, else float32.
"""

from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.lib.harness import (
    Rows,
    arguments,
    build_model,
    document,
    has_bfloat16,
    inference,
    model_config,
    publish,
    ratio,
    take_turns,
    training,
)
from benchmarks.papers.ablations.run import operations

PAIRS = (("vit_b32", "bit_r50x1"), ("vit_b16", "bit_r50x2"))
"""A ViT, and a BiT with 0.92 to 0.93 of its operations."""
SIDE = 2048


def measured(pixels: int, batch: int, rounds: int, side: int, precision: str) -> Rows:
    """A row for each pair and way: shares of both, and their ratio with its range."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    square = torch.randn(side, side).to(dtype)
    images = torch.randn(batch, 3, pixels, pixels)
    rows: Rows = []

    def share(name: str, way: str) -> float:
        """Operations of a call over those of the product."""
        return batch * operations(name, way, pixels) / (2 * side**3)

    for way in ("inference", "training"):
        calls: dict[str, Any] = {"peak": partial(torch.mm, square, square)}
        for name in (name for pair in PAIRS for name in pair):
            model = build_model(model_config(name, image_size=pixels))
            if way == "training":
                calls[name] = partial(training(model, precision), images)
            else:
                calls[name] = inference(model.to(dtype), images)
        times = take_turns(way, calls, rounds, "cpu")
        for pair in PAIRS:
            shares = [
                [share(name, way) * faster for faster in times[name].ratios(times["peak"])]
                for name in pair
            ]
            over = ratio([vit / bit for vit, bit in zip(*shares, strict=True)])
            medians = dict(zip(("vit_share", "bit_share"), map(median, shares), strict=True))
            rows.append({"vit": pair[0], "bit": pair[1], "way": way, **medians, **over})
    return rows


def main() -> None:
    options = arguments(__doc__, rounds=5).parse_args()
    torch.set_num_threads(1)
    sizes = (32, 1, 2, 64) if options.quick else (224, 8, options.rounds, SIDE)
    precision = "bf16" if has_bfloat16() else "fp32"
    rows = measured(*sizes, precision)
    facts = {"precision": precision, "batch": sizes[1], "rounds": sizes[2], "side": sizes[3]}
    publish(document("shares of the peak", rows, **facts), options, "papers/compute/shares")


if __name__ == "__main__":
    main()
