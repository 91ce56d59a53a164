"""How time grows with image size, batch, depth and width, and how it scales with processes.

    python -m benchmarks.speed.scaling [--device cuda] [--quick]

One small ViT (width 192, depth 6, patch 16, 224 pixels), of which one size is changed at a time.
The values of an axis are measured alternately. Its exponent is the slope of log seconds per image
over log value, the median over rounds. On a CPU the clock is the CPU time of one thread. Processes
train with DistributedDataParallel (gloo, or nccl on GPUs), each with its own batch on one thread,
in wall-clock time. With all axes on a CPU it draws docs/scaling.png.
"""

import math
import os
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.lib.harness import (
    ROOT,
    Call,
    Rows,
    Times,
    arguments,
    build_model,
    document,
    finisher,
    free_port,
    in_turns,
    inference,
    keep_memory,
    publish,
    take_turns,
    training,
    work,
)
from benchmarks.lib.model_peers import sized
from vit import ViTConfig

BASE = {"image_size": 224, "patch_size": 16, "width": 192, "depth": 6, "batch": 8}
AXES: dict[str, tuple[int, ...]] = {
    "image_size": (112, 160, 224, 320, 448),
    "batch": (1, 2, 4, 8, 16, 32),
    "depth": (3, 6, 12, 24),
    "width": (96, 192, 384, 768),
}
WAYS = ("inference fp32", "inference bf16", "training bf16")
NAMES = {
    "image_size": "tokens",
    "batch": "images per batch",
    "depth": "layers",
    "width": "width",
    "ranks": "processes",
}


def config(values: dict[str, int]) -> ViTConfig:
    """The small ViT with these sizes."""
    return sized(*(values[name] for name in ("width", "depth", "image_size", "patch_size")))


def measure_axis(axis: str, points: tuple[int, ...], device: torch.device, rounds: int) -> Rows:
    """One row per value and way (inference in bf16 and fp32, training in bf16)."""
    calls: dict[tuple[str, int], Call] = {}
    cost = {point: work(config({**BASE, axis: point})) for point in points}
    batches = {point: {**BASE, axis: point}["batch"] for point in points}
    for point in points:
        sizes = config({**BASE, axis: point})
        images = torch.randn(batches[point], 3, *sizes.size, device=device)
        for way in WAYS:
            model = build_model(sizes).to(device)
            if way == "training bf16":
                calls[way, point] = partial(training(model, "bf16"), images)
            else:
                dtype = torch.bfloat16 if way == "inference bf16" else torch.float32
                calls[way, point] = inference(model.to(dtype), images)
    times = take_turns(NAMES[axis], calls, rounds, device)
    x = {point: tokens(point) if axis == "image_size" else point for point in points}
    rows = []
    for way in WAYS:
        slopes = exponents(axis, {point: times[way, point] for point in points}, batches)
        for point in points:
            each, operations = times[way, point], cost[point]
            rate = batches[point] / each.median
            flops = operations.training_flops if way == "training bf16" else operations.flops
            rows.append(
                {
                    "axis": axis,
                    "way": way,
                    "value": point,
                    "x": x[point],
                    "images_per_second": rate,
                    "spread": each.spread,
                    "flops_per_second": rate * flops,
                    "exponent": statistics.median(slopes),
                    "exponent_min": min(slopes),
                    "exponent_max": max(slopes),
                    "exponent_of_operations": slope(
                        [*x.values()], [each.flops for each in cost.values()]
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


def measure_ranks(device: str, steps: int) -> Rows:
    """One row per number of processes, up to one per core or GPU, measured alternately."""
    most = torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    samples: dict[int, list[float]] = {n: [] for n in counts}
    context = torch.multiprocessing.get_context("spawn")
    for n in 2 * counts:
        queue = context.SimpleQueue()
        torch.multiprocessing.spawn(  # pyright: ignore[reportPrivateImportUsage]
            rank_process, args=(n, free_port(), device, steps, queue), nprocs=n, join=True
        )
        samples[n] += queue.get()
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
            "rounds": len(rates),
        }
        for n, rates in samples.items()
    ]


def draw(rows: Rows, path: Path) -> None:
    """Plots milliseconds per image over each axis."""
    from vit.extensions.reports.drawing import LIGHT, label_axes, new_figure, png, style_axes

    figure = new_figure(9.6, 2.9)
    colours = dict(zip(WAYS, (LIGHT.accent, LIGHT.second, LIGHT.third), strict=True))
    for i, axis in enumerate(AXES):
        axes = figure.add_subplot(1, len(AXES), i + 1)
        style_axes(axes)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for way, colour in colours.items():
            chosen = [r for r in rows if r["axis"] == axis and r["way"] == way]
            x = [r["x"] for r in chosen]
            y = [1000 / r["images_per_second"] for r in chosen]
            axes.plot(x, y, "o-", color=colour, markersize=4, label=way)
            axes.set_xticks(x, [str(value) for value in x])
        axes.minorticks_off()
        label_axes(axes, x=NAMES[axis], y="ms per image" if i == 0 else "")
        if i == 0:
            axes.legend(frameon=False, fontsize=7.5, labelcolor=LIGHT.ink)
    path.write_bytes(png(figure))


def main() -> None:
    """Measures, writes the files and prints the JSON."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--axes", nargs="+", choices=(*AXES, "ranks"), default=[*AXES, "ranks"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    device = torch.device(options.device)
    rows: Rows = []
    for axis in options.axes:
        if axis == "ranks":
            rows += measure_ranks(options.device, 2 if options.quick else 8)
            continue
        points = AXES[axis][:2] if options.quick else AXES[axis]
        rows += measure_axis(axis, points, device, 2 if options.quick else options.rounds)
    for r in rows:
        more = f"exponent {r['exponent']:.2f}" if "exponent" in r else f"{r['efficiency']:.0%}"
        print(
            f"{NAMES[r['axis']]:16} {r['x']:5} {r['way']:15} "
            f"{r['images_per_second']:9.2f}/s  ±{r['spread']:.0%}  {more}"
        )
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    whole = set(options.axes) == {*AXES, "ranks"}
    standard = f"results/scaling_{options.device}"
    content = document("scaling", rows, device=name, base=BASE)
    publish(content, options, standard if whole else None)
    if whole and options.device == "cpu" and not options.quick:
        draw(rows, ROOT / "docs" / "scaling.png")


if __name__ == "__main__":
    main()
