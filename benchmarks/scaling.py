"""How time grows with image size, batch, depth and width, and how it scales with processes.

    python benchmarks/scaling.py [--device cuda] [--quick]

One small ViT (width 192, depth 6, patch 16, 224 pixels), of which one size is changed at a time.
The values of an axis are measured alternately. Its exponent is the slope of log seconds per image
over log value, the median over rounds. On a CPU the clock is the CPU time of one thread. Processes
train with DistributedDataParallel (gloo, or nccl on GPUs), each with its own batch on one thread,
in wall-clock time. With all axes it writes docs/scaling.png and
benchmarks/results/scaling_<device>.json; the last line of output is the JSON.
"""

import argparse
import json
import math
import os
import socket
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from collect import document, write
from torch import nn

from vit.compute.flops import work
from vit.compute.steps import inference, training
from vit.compute.timing import Call, Times, finisher, in_turns, num_turns
from vit.console import Meter
from vit.hardware import keep_memory
from vit.models.config import ViTConfig
from vit.models.zoo import build_model

ROOT = Path(__file__).parents[1]
BASE = {"image_size": 224, "patch_size": 16, "width": 192, "depth": 6, "batch": 8}
AXES: dict[str, tuple[int, ...]] = {
    "image_size": (112, 160, 224, 320, 448),
    "batch": (1, 2, 4, 8, 16, 32),
    "depth": (3, 6, 12, 24),
    "width": (96, 192, 384, 768),
}
NAMES = {
    "image_size": "tokens",
    "batch": "images per batch",
    "depth": "layers",
    "width": "width",
}


def config(values: dict[str, int]) -> ViTConfig:
    """The small ViT with these sizes; heads have 64 channels, or 96 at width 96."""
    width = values["width"]
    return ViTConfig(
        image_size=values["image_size"],
        patch_size=values["patch_size"],
        width=width,
        depth=values["depth"],
        mlp_dim=4 * width,
        num_heads=max(1, width // 64),
        activation="gelu",
    )


def measure_axis(
    axis: str, points: tuple[int, ...], device: torch.device, rounds: int
) -> list[dict[str, Any]]:
    """One row per value and way (inference in bf16 and fp32, training in bf16)."""
    ways = ("inference fp32", "inference bf16", "training bf16")
    calls: dict[str, Call] = {}
    flops, batches = {}, {}
    for point in points:
        values = {**BASE, axis: point}
        sizes = config(values)
        images = torch.randn(values["batch"], 3, *sizes.size, device=device)
        for way in ways:
            what, precision = way.split()
            model = build_model(sizes).to(device)
            if what == "inference":
                dtype = torch.bfloat16 if precision == "bf16" else torch.float32
                calls[f"{way} {point}"] = inference(model.to(dtype), images)
            else:
                calls[f"{way} {point}"] = partial(training(model, precision), images)
        flops[point], batches[point] = work(sizes), values["batch"]
    with Meter(NAMES[axis], num_turns(len(calls), rounds), "turns") as meter:
        times = in_turns(
            calls,
            rounds=rounds,
            clock="cpu" if device.type == "cpu" else "wall",
            finish=finisher(device),
            meter=meter,
        )
    rows = []
    for way in ways:
        by_value = {point: times[f"{way} {point}"] for point in points}
        slopes = exponents(axis, by_value, batches)
        for point, each in by_value.items():
            rate = batches[point] / each.median
            cost = flops[point]
            operations = cost.training_flops if way.startswith("training") else cost.flops
            rows.append(
                {
                    "axis": axis,
                    "way": way,
                    "value": point,
                    "x": tokens(point) if axis == "image_size" else point,
                    "images_per_second": rate,
                    "spread": each.spread,
                    "flops_per_second": rate * operations,
                    "exponent": statistics.median(slopes),
                    "exponent_min": min(slopes),
                    "exponent_max": max(slopes),
                    "exponent_of_operations": slope(
                        [tokens(p) if axis == "image_size" else p for p in points],
                        [flops[p].flops for p in points],
                    ),
                    "rounds": rounds,
                }
            )
    return rows


def tokens(image_size: int) -> int:
    """Number of patches and class token."""
    return config({**BASE, "image_size": image_size}).num_tokens


def exponents(axis: str, times: dict[int, Times], batches: dict[int, int]) -> list[float]:
    """Slope of log seconds per image for each round."""
    x = [tokens(p) if axis == "image_size" else p for p in times]
    rounds = len(next(iter(times.values())).values)
    return [slope(x, [t.values[i] / batches[p] for p, t in times.items()]) for i in range(rounds)]


def slope(x: list[int], y: list[float] | list[int]) -> float:
    """Least-squares slope of log y over log x."""
    return statistics.linear_regression([math.log(v) for v in x], [math.log(v) for v in y]).slope


def rank_process(rank: int, world: int, port: int, device: str, steps: int, queue: Any) -> None:
    """Trains in step with the others. The first process puts the total images/s in `queue`."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    keep_memory()
    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, rank=rank, world_size=world)
    place = torch.device("cpu") if device == "cpu" else torch.device("cuda", rank)
    if device == "cuda":
        torch.cuda.set_device(place)
    model: nn.Module = build_model(config(BASE)).to(place)
    if world > 1:
        model = nn.parallel.DistributedDataParallel(model)
    images = torch.randn(BASE["batch"], 3, 224, 224, device=place)
    wait = finisher(place)

    def finish() -> None:
        wait()
        torch.distributed.barrier()

    # A turn is one step, so that all processes run the same number.
    call = partial(training(model, "bf16"), images)
    times = in_turns({rank: call}, rounds=steps, shortest=0, finish=finish)[rank]
    if rank == 0:
        queue.put([world * BASE["batch"] / seconds for seconds in times.values])
    torch.distributed.destroy_process_group()


def measure_ranks(device: str, steps: int) -> list[dict[str, Any]]:
    """One row per number of processes, up to one per core or GPU, measured alternately."""
    most = torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    samples: dict[int, list[float]] = {n: [] for n in counts}
    context = torch.multiprocessing.get_context("spawn")
    with Meter("processes", 2 * len(counts), "turns") as meter:
        for n in 2 * counts:
            meter.show(f"processes: {n}")
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            queue = context.SimpleQueue()
            torch.multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
                rank_process, args=(n, port, device, steps, queue), nprocs=n, join=True
            )
            samples[n] += queue.get()
            meter.advance()
    alone = statistics.median(samples[1])
    return [
        {
            "axis": "ranks",
            "way": "training bf16",
            "value": n,
            "x": n,
            "images_per_second": statistics.median(rates),
            "spread": (max(rates) - min(rates)) / 2 / statistics.median(rates),
            "efficiency": statistics.median(rates) / n / alone,
            "best_efficiency": max(rates) / n / max(samples[1]),
            "rounds": len(rates),
        }
        for n, rates in samples.items()
    ]


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots seconds per image over each axis."""
    from vit.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    figure = new_figure(9.6, 2.9, LIGHT)
    colours = {
        "inference fp32": LIGHT.first,
        "inference bf16": LIGHT.second,
        "training bf16": LIGHT.third,
    }
    for i, axis in enumerate(AXES):
        axes = figure.add_subplot(1, len(AXES), i + 1)
        style_axes(axes, LIGHT)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for way, colour in colours.items():
            chosen = [r for r in rows if r["axis"] == axis and r["way"] == way]
            x = [r["x"] for r in chosen]
            y = [1000 / r["images_per_second"] for r in chosen]
            axes.plot(x, y, "o-", color=colour, markersize=4, label=way)
        axes.set_xticks([r["x"] for r in rows if r["axis"] == axis and r["way"] == "training bf16"])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
        axes.xaxis.set_minor_locator(__import__("matplotlib.ticker").ticker.NullLocator())
        label_axes(axes, LIGHT, x=NAMES[axis], y="ms per image" if i == 0 else "")
        if i == 0:
            axes.legend(frameon=False, fontsize=7.5, labelcolor=LIGHT.ink)
    path.write_bytes(png(figure))


def main() -> None:
    """Measures, writes the files and prints the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--axes", nargs="+", choices=(*AXES, "ranks"), default=[*AXES, "ranks"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few points, no file written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    device = torch.device(options.device)
    rows: list[dict[str, Any]] = []
    for axis in options.axes:
        if axis == "ranks":
            rows += measure_ranks(options.device, 2 if options.quick else 8)
            continue
        points = AXES[axis][:2] if options.quick else AXES[axis]
        rows += measure_axis(axis, points, device, 2 if options.quick else options.rounds)
    for r in rows:
        more = f"exponent {r['exponent']:.2f}" if "exponent" in r else f"{r['efficiency']:.0%}"
        print(
            f"{NAMES.get(r['axis'], 'processes'):16} {r['x']:5} {r['way']:15} "
            f"{r['images_per_second']:9.2f}/s  ±{r['spread']:.0%}  {more}"
        )
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    measured = document("scaling", rows, device=name, base=BASE)
    if not options.quick and set(options.axes) == {*AXES, "ranks"}:
        path = ROOT / "benchmarks" / "results" / f"scaling_{options.device}.json"
        write(measured, path)
        if options.device == "cpu":
            draw(rows, ROOT / "docs" / "scaling.png")
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
