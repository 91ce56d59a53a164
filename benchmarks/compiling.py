"""Seconds that torch.compile takes on this CPU, and what it saves per image.

    python benchmarks/compiling.py [--rounds 7] [--quick]

Each step runs in two processes, one after the other, that share a new folder for inductor's cache:
"cold" is the time of the first call of the compiled model in the first process, "again" that in the
second; a usual step is taken off both. Seconds are CPU time of the process and of the compilers
that it starts, one after the other (TORCHINDUCTOR_COMPILE_THREADS=1); "wall" is what they took on
this machine, with its other load. In the second process compiled and eager steps take turns on one
thread. Eager is what `vit` does without --model.compile. "frozen": inductor's option `freezing`,
which packs weights. "pays after": images from which the saved time exceeds the time of compiling,
cold and again. "error": of logits, relative to float64. Writes
benchmarks/results/compiling_<machine>.json; the last line of output is the JSON.
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from collect import document, results_file, write
from model_peers import CIFAR, configuration, fill

from vit.compute.steps import inference, training
from vit.compute.timing import in_turns
from vit.hardware import keep_memory
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig, build_model

TINY = "tiny"
STEPS = (
    (CIFAR, "training", 128, "compiled"),
    ("vit_ti16", "inference", 8, "compiled"),
    ("vit_ti16", "training", 8, "compiled"),
    ("vit_b16", "inference", 4, "compiled"),
    ("vit_b16", "inference", 4, "compiled, frozen"),
    (CIFAR, "inference", 128, "compiled"),
    ("vit_s16", "inference", 8, "compiled"),
    ("vit_s16", "training", 4, "compiled"),
)
WAYS: dict[str, dict[str, Any]] = {
    "compiled": {},
    "compiled, frozen": {"options": {"freezing": True}},
}


def config_of(name: str) -> ModelConfig:
    """A model of benchmarks/model_peers.py, or one that is compiled in seconds."""
    if name == TINY:
        return ViTConfig(
            image_size=16, patch_size=8, num_classes=5, width=16, depth=1, mlp_dim=32, num_heads=2
        )
    return configuration(name)


def clocks() -> tuple[float, float]:
    """CPU seconds of this process and of those that it has waited for, and the time."""
    return sum(os.times()[:4]), time.perf_counter()


def one_process(name: str, what: str, batch: int, way: str, rounds: int) -> dict[str, Any]:
    """Seconds of the first compiled call, and compiled and eager steps in turns."""
    config = config_of(name)
    eager: Any = fill(build_model(config))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, config.in_channels, *config.size, generator=generator)
    # As `--model.compile true` does: compiled in place.
    compiled = copy.deepcopy(eager)
    compiled.compile(dynamic=False, **WAYS[way])
    if what == "inference":
        calls = {"eager": inference(eager, images), "compiled": inference(compiled, images)}
    else:
        calls = {
            "eager": partial(training(eager, "fp32"), images),
            "compiled": partial(training(compiled, "fp32"), images),
        }
    calls["eager"]()
    starts = [clocks()]
    for _ in range(2):
        calls["compiled"]()
        starts.append(clocks())
    first, usual = ([b - a for a, b in zip(*pair, strict=True)] for pair in pairwise(starts))
    seconds = [a - b for a, b in zip(first, usual, strict=True)]
    found: dict[str, Any] = {"seconds": seconds[0], "wall": seconds[1]}
    if rounds:
        times = in_turns(calls, rounds=rounds, clock="cpu", shortest=0.2)
        ratios = times["compiled"].ratios(times["eager"])
        found |= {
            "eager": times["eager"].median / batch,
            "compiled": times["compiled"].median / batch,
            "ratio": times["compiled"].faster_than(times["eager"]),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        if what == "inference":
            exact = copy.deepcopy(eager).double()
            with torch.inference_mode():
                truth = exact(images.double())
            outputs = {name: call() for name, call in calls.items()}
            found["error"] = {
                name: ((out.double() - truth).norm() / truth.norm()).item()
                for name, out in outputs.items()
                if isinstance(out, torch.Tensor)
            }
    return found


def measure(name: str, what: str, batch: int, way: str, rounds: int) -> dict[str, Any]:
    """One row, from two processes with a new cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": folder}
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        parts = []
        for used in (0, rounds):
            command = [sys.executable, __file__, "--alone", name, what, str(batch), way, str(used)]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise SystemExit(done.stderr)
            parts.append(json.loads(done.stdout.splitlines()[-1]))
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    cold, again = (part.pop("seconds") for part in parts)
    wall = [part.pop("wall") for part in parts]
    saved = parts[1]["eager"] - parts[1]["compiled"]
    return {
        "model": name,
        "what": what,
        "batch_size": batch,
        "way": way,
        "cold": cold,
        "again": again,
        "wall": wall,
        "cache_bytes": size,
        "pays_after": [seconds / saved if saved > 0 else None for seconds in (cold, again)],
        **parts[1],
        "rounds": rounds,
    }


def line(row: dict[str, Any]) -> str:
    """A row to read."""
    after = ["never" if n is None else f"{n:,.0f}" for n in row["pays_after"]]
    return (
        f"{row['model']:9} {row['what']:9} {row['batch_size']:4} {row['way']:16} "
        f"cold {row['cold']:6.1f} s, again {row['again']:6.1f} s  x{row['ratio']:.2f} "
        f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f})  pays after {' / '.join(after)} images"
    )


def main() -> None:
    """Measures, prints a table, writes the file and prints the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a tiny model, no file written")
    parser.add_argument("--alone", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    if options.alone:
        name, what, batch, way, rounds = options.alone
        print(json.dumps(one_process(name, what, int(batch), way, int(rounds))))
        return
    steps = [(TINY, "inference", 2, "compiled")] if options.quick else STEPS
    rows: list[dict[str, Any]] = []
    measured = document("compiling", rows)
    for step in steps:
        rows.append(measure(*step, 2 if options.quick else options.rounds))
        print(line(rows[-1]), flush=True)
        # After every row: all of them take an hour on a busy machine.
        write(measured, None if options.quick else results_file("compiling"))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
