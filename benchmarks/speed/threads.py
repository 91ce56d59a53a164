"""Images per second with 1, 2, 4, ... threads.

    GOMP_SPINCOUNT=10000 python -m benchmarks.speed.threads [--rounds 9] [--quick]

The variable lets threads wait as in the command `vit` (vit/hardware.py); recorded as "spins".
Wall-clock time, because threads that wait use CPU time too: meaningful only where nothing else
runs. Every thread count takes its turn in each round; ratios are to one thread in the same round.
"others" is the number of cores that other processes used meanwhile.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.lib.harness import (
    Call,
    ModelConfig,
    Rows,
    Times,
    arguments,
    build_model,
    document,
    hardware,
    in_turns,
    inference,
    keep_memory,
    publish,
    ratio,
    results_name,
    span,
    training,
    work,
)
from benchmarks.lib.model_peers import CIFAR, configuration, sized

DIGITS = "digits"
STEPS = (
    (DIGITS, "training", 64),
    *((CIFAR, "training", batch) for batch in (4, 16, 128)),
    ("vit_ti16", "training", 8),
    ("vit_s16", "training", 8),
    (DIGITS, "inference", 64),
    (CIFAR, "inference", 128),
    *(("vit_ti16", "inference", batch) for batch in (1, 8)),
    ("vit_s16", "inference", 8),
    ("vit_b16", "inference", 4),
)
# Least seconds of a turn.
TURN = 0.3


def config_of(name: str) -> ModelConfig:
    """A model of benchmarks/lib/model_peers.py, or a small one for 8 x 8 pixels."""
    if name == DIGITS:
        return sized(64, 4, 8, 2, num_heads=2, num_classes=10)
    return configuration(name)


def busy_seconds() -> float | None:
    """Seconds that all cores together have worked, of all processes; None if not on Linux."""
    try:
        values = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, soft, *_ = map(int, values)
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def watched(measure: Callable[[], dict[Any, Times]]) -> tuple[dict[Any, Times], float | None]:
    """What `measure` returns, and how many cores others used meanwhile."""
    before, own, start = busy_seconds(), sum(os.times()[:4]), time.perf_counter()
    times = measure()
    after, used = busy_seconds(), sum(os.times()[:4]) - own
    if before is None or after is None:
        return times, None
    return times, max(0.0, (after - before - used) / (time.perf_counter() - start))


def on_threads(call: Call, threads: int) -> Call:
    """The call with this many threads."""

    def turn() -> object:
        torch.set_num_threads(threads)
        return call()

    return turn


def rows(name: str, what: str, batch: int, counts: list[int], rounds: int) -> Rows:
    """A row per number of threads, in float32."""
    config = config_of(name)
    torch.manual_seed(0)
    model = build_model(config)
    images = torch.randn(batch, config.in_channels, *config.size)
    operations, call = work(config).flops, inference(model, images)
    if what == "training":
        operations, call = work(config).training_flops, partial(training(model, "fp32"), images)
    calls = {count: on_threads(call, count) for count in counts}
    times, others = watched(lambda: in_turns(calls, rounds=rounds, shortest=TURN))
    return [
        {
            "model": name,
            "what": what,
            "batch_size": batch,
            "gflop": operations * batch / 1e9,
            "threads": count,
            "images_per_second": batch / times[count].median,
            **ratio(times[count].ratios(times[1])),
            "others": others,
            "rounds": rounds,
        }
        for count in counts
    ]


def main() -> None:
    """Measures, prints a table, writes the file and prints the JSON."""
    options = arguments(__doc__, rounds=9).parse_args()
    keep_memory()
    most = hardware()["cores"]
    counts = sorted({n for n in (1, 2, 4, 8, 16, 32, 64, most) if n <= most})
    rounds = 2 if options.quick else options.rounds
    measured: Rows = []
    for name, what, batch in STEPS[:1] if options.quick else STEPS:
        for row in rows(name, what, batch, counts, rounds):
            measured.append(row)
            others = "" if row["others"] is None else f"  others {row['others']:.2f}"
            print(
                f"{name:9} {what:9} {batch:4} {row['gflop']:8.1f} GFLOP {row['threads']:3} "
                f"{row['images_per_second']:9.2f}/s  x{span(row)}{others}",
                flush=True,
            )
    spins = os.environ.get("GOMP_SPINCOUNT")
    content = document("threads", measured, clock="wall", spins=spins)
    publish(content, options, results_name("threads"))


if __name__ == "__main__":
    main()
