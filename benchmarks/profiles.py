"""Time of training steps by kind of operation, with and without our choice of attention.

    python benchmarks/profiles.py [--precision fp32] [--quick]

On one thread: ViT-B/16, ViT-Ti/16, and a ViT for 32 x 32 pixels (width 192, depth 6, patch 4), in
bfloat16 by autocast, which is the default where the CPU has units for it. "before" is the same
model with scaled_dot_product_attention and default AdamW; "after" has vit/models/attention.py and
fused AdamW. Both alternate. The ratio is for whole steps without a profiler; the parts are
milliseconds per step under PyTorch's profiler. Writes benchmarks/results/profiles_<machine>.json;
the last line of output is the JSON.
"""

import argparse
import json
from typing import Any
from unittest import mock

import torch
from collect import document, results_file, write
from model_peers import CIFAR, configuration
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile

from vit.compute.steps import training
from vit.compute.timing import Call, in_turns
from vit.hardware import has_bfloat16, keep_memory
from vit.models import attention
from vit.models.config import PRODUCT_TOKENS
from vit.models.zoo import build_model

STEPS = (
    ("vit_b16", 4),
    ("vit_ti16", 8),
    (CIFAR, 128),
)
PARTS = {
    "matrix products": ("mm", "addmm", "linear", "_linear_pointwise"),
    "attention": (
        "bmm",
        "baddbmm",
        "_softmax",
        "_softmax_backward_data",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "GELU": ("gelu", "gelu_backward"),
    "normalisation": ("native_layer_norm", "native_layer_norm_backward"),
    "copies and casts": ("copy_", "cat"),
    "sums by element": ("add", "add_", "sum"),
    "patch projection": ("mkldnn_convolution", "convolution_backward"),
    "optimizer": (
        "_fused_adamw_",
        "Optimizer.step#AdamW.step",
        *("lerp_", "mul_", "addcmul_", "addcdiv_", "sqrt", "div"),
    ),
}


def step(name: str, batch: int, precision: str, before: bool) -> Call:
    """One step of the model."""
    config = configuration(name)
    torch.manual_seed(0)
    model = build_model(config)
    images = torch.randn(batch, 3, *config.size)
    train = training(model, precision, AdamW(model.parameters(), lr=1e-6) if before else None)

    def call() -> object:
        with mock.patch.object(attention, "PRODUCT_TOKENS", 0 if before else PRODUCT_TOKENS):
            return train(images)

    return call


def parts(call: Call, steps: int) -> dict[str, float]:
    """Milliseconds per step by kind of operation."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            call()
    sums = dict.fromkeys([*PARTS, "the rest"], 0.0)
    for event in profiler.key_averages():
        operation = event.key.split("::")[-1]
        part = next((part for part, names in PARTS.items() if operation in names), "the rest")
        sums[part] += event.self_cpu_time_total / 1000 / steps
    return sums


def row(name: str, batch: int, precision: str, rounds: int) -> dict[str, Any]:
    """One step before and after."""
    ways = ("before", "after")
    calls = {way: step(name, batch, precision, way == "before") for way in ways}
    times = in_turns(calls, rounds=rounds, clock="cpu")
    ratios = times["after"].ratios(times["before"])
    return {
        "model": name,
        "batch_size": batch,
        "precision": precision,
        "milliseconds": {way: 1000 * times[way].median for way in calls},
        "ratio": times["after"].faster_than(times["before"]),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "rounds": rounds,
        "parts": {way: parts(call, 2 if rounds < 5 else 5) for way, call in calls.items()},
    }


def main() -> None:
    """Measures, prints tables, writes the file and prints the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="the smallest step, no file written")
    default = "bf16" if has_bfloat16() else "fp32"
    parser.add_argument("--precision", choices=("fp32", "bf16"), default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = []
    for name, batch in STEPS[-1:] if options.quick else STEPS:
        batch, rounds = (8, 2) if options.quick else (batch, options.rounds)
        result = row(name, batch, options.precision, rounds)
        rows.append(result)
        print(
            f"{name}, batch {batch}: x{result['ratio']:.2f} "
            f"({result['ratio_min']:.2f}-{result['ratio_max']:.2f})"
        )
        for part, before in result["parts"]["before"].items():
            print(f"  {part:30} {before:8.1f} -> {result['parts']['after'][part]:8.1f} ms")
    measured = document("profiles", rows)
    write(measured, None if options.quick else results_file("profiles"))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
