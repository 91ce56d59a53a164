"""Images per second with 1, 2, 4, ... threads, and whether the cores share their units.

    GOMP_SPINCOUNT=10000 python benchmarks/threads.py [--rounds 9] [--quick]

The variable lets threads wait as in the command `vit` (vit/hardware.py); recorded as "spins".
Wall-clock time, because threads that wait use CPU time too: meaningful only where nothing else
runs. Every thread count takes its turn in each round; ratios are to one thread in the same round.
"others" is the number of cores that other processes used meanwhile. The products come first: the
same one alone, and beside a second process that computes the same on another core. Two cores give 2
times the speed of one; hyperthreads of one core share its units and give little more than 1. "own
share" is the part of a core that the system gave this process meanwhile; below 0.95 the machine was
busy. Writes benchmarks/results/threads_<machine>.json; the last line of output is the JSON.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from collect import document, results_file, write
from model_peers import CIFAR, configuration

from vit.compute.flops import work
from vit.compute.steps import inference, training
from vit.compute.timing import Call, Times, in_turns
from vit.hardware import hardware, keep_memory
from vit.models.config import ViTConfig
from vit.models.zoo import ModelConfig, build_model

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
# Rows and columns of the product.
PRODUCT = 1024


def config_of(name: str) -> ModelConfig:
    """A model of benchmarks/model_peers.py, or a small one for 8 x 8 pixels."""
    if name == DIGITS:
        sizes = {"image_size": 8, "patch_size": 2, "num_classes": 10}
        return ViTConfig(**sizes, width=64, depth=4, mlp_dim=256, num_heads=2, activation="gelu")
    return configuration(name)


def thread_counts(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`, and `most`."""
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return sorted({*counts, most})


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
    found = measure()
    after, used = busy_seconds(), sum(os.times()[:4]) - own
    if before is None or after is None:
        return found, None
    return found, max(0.0, (after - before - used) / (time.perf_counter() - start))


def step(name: str, what: str, batch: int) -> Call:
    """One step of the model in float32."""
    config = config_of(name)
    torch.manual_seed(0)
    model = build_model(config)
    images = torch.randn(batch, config.in_channels, *config.size)
    if what == "inference":
        return inference(model, images)
    return partial(training(model, "fp32"), images)


def on_threads(call: Call, threads: int) -> Call:
    """The call with this many threads."""

    def turn() -> object:
        torch.set_num_threads(threads)
        return call()

    return turn


def rows(name: str, what: str, batch: int, counts: list[int], rounds: int) -> list[dict[str, Any]]:
    """A row per number of threads."""
    config, call = config_of(name), step(name, what, batch)
    calls = {count: on_threads(call, count) for count in counts}
    times, others = watched(lambda: in_turns(calls, rounds=rounds, shortest=TURN))
    operations = work(config)
    flops = operations.flops if what == "inference" else operations.training_flops
    return [
        {
            "model": name,
            "what": what,
            "batch_size": batch,
            "gflop": flops * batch / 1e9,
            "threads": count,
            "images_per_second": batch / times[count].median,
            **ratio(times[count].ratios(times[1]), times[count].faster_than(times[1])),
            "others": others,
            "rounds": rounds,
        }
        for count in counts
    ]


def ratio(ratios: list[float], median: float) -> dict[str, float]:
    """Median and range."""
    return {"ratio": median, "ratio_min": min(ratios), "ratio_max": max(ratios)}


def _neighbour(ready: Any, work_now: Any) -> None:
    torch.set_num_threads(1)
    a = torch.randn(PRODUCT, PRODUCT)
    ready.set()
    while True:
        work_now.wait()
        a @ a


def neighbours(rounds: int) -> dict[str, Any]:
    """Products per second of two processes at once over those of one alone."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("spawn")
    ready, work_now = context.Event(), context.Event()
    other = context.Process(target=_neighbour, args=(ready, work_now), daemon=True)
    other.start()
    ready.wait()
    a = torch.randn(PRODUCT, PRODUCT)
    ratios, own, wall = [], 0.0, 0.0
    for _ in range(rounds):
        times = []
        for both in (False, True):
            (work_now.set if both else work_now.clear)()
            time.sleep(0.05)  # until the other process has begun, or ended its product
            start = time.process_time(), time.perf_counter()
            times.append(in_turns({0: lambda: a @ a}, rounds=1, shortest=TURN)[0].median)
            own, wall = own + time.process_time() - start[0], wall + time.perf_counter() - start[1]
        ratios.append(2 * times[0] / times[1])
    other.kill()
    other.join()
    return {**ratio(ratios, statistics.median(ratios)), "own_share": own / wall, "rounds": rounds}


def siblings() -> list[str] | None:
    """The hyperthreads of each core as Linux lists them; None where it does not."""
    files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return sorted({file.read_text().strip() for file in files}) or None


def main() -> None:
    """Measures, prints a table, writes the file and prints the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="the smallest step, no file written")
    options = parser.parse_args()
    keep_memory()
    counts = thread_counts(hardware()["cores"])
    rounds = 2 if options.quick else options.rounds
    two = neighbours(rounds)
    print(f"two processes: {two['ratio']:.2f} ({two['ratio_min']:.2f}-{two['ratio_max']:.2f})")
    found: list[dict[str, Any]] = []
    for name, what, batch in STEPS[:1] if options.quick else STEPS:
        for row in rows(name, what, batch, counts, rounds):
            found.append(row)
            others = "" if row["others"] is None else f"  others {row['others']:.2f}"
            print(
                f"{name:9} {what:9} {batch:4} {row['gflop']:8.1f} GFLOP {row['threads']:3} "
                f"{row['images_per_second']:9.2f}/s  x{row['ratio']:.2f} "
                f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}){others}",
                flush=True,
            )
    spins = os.environ.get("GOMP_SPINCOUNT")
    measured = document(
        "threads", found, clock="wall", spins=spins, siblings=siblings(), processes=two
    )
    write(measured, None if options.quick else results_file("threads"))
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
