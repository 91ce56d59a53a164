"""`vit bench`: images a second of one model on this machine, and how near that is to its limit."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from vit.cli.messages import OneLineParser
from vit.errors import UserError

if TYPE_CHECKING:
    import torch

    from vit.compute.candidate import Candidate

BATCHES = {"cpu": (1, 8), "cuda": (1, 32, 128)}
NEARLY = 0.95
"""Share of the highest rate that a smaller batch must reach to be the one suggested."""
EPILOG = """\
examples:
  vit bench                                         ViT-B/16: every precision that suits the machine
  vit bench vit_s16 --train --batch-size 8 32 128   which batch to train with
  vit bench runs/my_photos --json                   a trained model

The limit is what the model's dense products reach when they run alone, in the same minutes; the
share counts the model's multiply-adds only, so that everything else in it is lost speed. Forward
passes on a CPU are those of packed weights, as `vit classify` has them for more than a batch."""


def parser() -> OneLineParser:
    """The options of `vit bench`."""
    from vit.cli.compare import pixels, whole_number

    made = OneLineParser(
        prog="vit bench",
        description="Measures images a second of one model on this machine, and how near that is "
        "to the machine's limit.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("model", nargs="?", default="vit_b16", metavar="MODEL",
        help="a name (`vit models`), torchvision/NAME, a run, or a file of weights "
        "(default vit_b16)")  # fmt: skip
    add("--image-size", type=pixels, metavar="N", help="pixels: 224, or 192x256 (height first)")
    add("--batch-size", type=whole_number, nargs="+", metavar="N",
        help="images at a time (default 1 and 8; on GPUs 1, 32 and 128)")  # fmt: skip
    add("--train", action="store_true", help="whole training steps instead of forward passes")
    add("--precision", nargs="+", choices=("fp32", "bf16"), metavar="P",
        help="fp32, bf16 or both (default: both where the hardware has bfloat16)")  # fmt: skip
    add("--compile", metavar="MODE", choices=("default", "reduce-overhead", "max-autotune"),
        help="measure it under torch.compile too, in this mode (reduce-overhead: CUDA graphs)"
        )  # fmt: skip
    add("--device", choices=("cpu", "cuda"), help="default: the GPU where there is one")
    add("--rounds", type=whole_number, default=5, metavar="N",
        help="of each measurement (default 5)")  # fmt: skip
    add("--json", action="store_true", help="print one object")
    return made


def run(args: list[str]) -> int:
    """Prints a table of rates, or JSON."""
    options = parser().parse_args(args)
    import torch

    from vit.cli.compare_inputs import find_model
    from vit.cli.compare_measure import Progress
    from vit.hardware import default_precision, hardware, versions

    has_gpu = torch.cuda.is_available()
    if options.device == "cuda" and not has_gpu:
        raise UserError("--device cuda: PyTorch finds no GPU here; leave it out to measure the CPU")
    device = torch.device(options.device or ("cuda" if has_gpu else "cpu"))
    model = find_model(options.model, options.image_size, None)
    if options.precision is None:
        fast = default_precision(device.type)[0] == "bf16-mixed"
        options.precision = ["fp32", "bf16"] if fast else ["fp32"]
    batches = sorted(set(options.batch_size or BATCHES[device.type]))
    with Progress() as progress:
        try:
            rows, limits = _measure(options, model, device, batches, progress)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
            raise UserError(
                f"{device.type} ran out of memory with --batch-size {batches[-1]}: choose a "
                "smaller one"
            ) from error
    result = {
        "model": model.name,
        "image_size": list(model.image_size),
        "params": model.work.params,
        "what": "training step" if options.train else "inference",
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "limit_flops_per_second": limits,
        "rows": rows,
        "suggestion": suggestion(rows),
        "hardware": hardware(),
        "versions": versions(),
    }
    print(json.dumps(result, indent=2) if options.json else table(result))
    return 0


def _measure(
    options: argparse.Namespace,
    model: "Candidate",
    device: "torch.device",
    batches: list[int],
    progress: Any,
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """A row a precision, batch and way of running; and the limit of each precision."""
    import torch

    from vit.compute.timing import finisher, in_turns, inference, limit, products, training

    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    calls, keys, limits = {}, {}, {}
    for precision in dict.fromkeys(options.precision):
        limits[precision] = limit(
            products(model.config, batches[-1], device),
            dtypes[precision],
            device,
            packed=not options.train,
        )
        calls[f"matrix products in {precision}"] = limits[precision].call
        for mode in (None, options.compile) if options.compile else (None,):
            network = model.build().to(device)
            if not options.train:
                network = network.to(dtypes[precision])
            if mode is not None:
                network.compile(mode=mode, dynamic=False)
            for batch in batches:
                images = torch.randn(batch, model.channels, *model.image_size, device=device)
                step = training(network, images, precision) if options.train else None
                name = f"{precision}{f', compiled ({mode})' if mode else ''}, batch {batch}"
                calls[name] = step or inference(network, images)
                keys[name] = (precision, mode, batch)
    times = in_turns(calls, rounds=options.rounds, finish=finisher(device), report=progress.show)
    work = model.work.training_flops if options.train else model.work.flops
    rows, speeds = [], {}
    for name, (precision, mode, batch) in keys.items():
        own = times[f"matrix products in {precision}"]
        speeds[precision] = limits[precision].flops / own.median
        rows.append(
            {
                "precision": precision,
                "compile": mode,
                "batch_size": batch,
                "images_per_second": batch / times[name].median,
                "milliseconds_per_batch": 1000 * times[name].median,
                "spread": times[name].spread,
                "rounds": options.rounds,
                "utilisation": limits[precision].share(batch * work, times[name], own),
            }
        )
    return rows, speeds


def suggestion(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The fastest way, and of its batches the smallest that is nearly as fast."""
    best = max(rows, key=lambda row: row["images_per_second"])
    enough = NEARLY * best["images_per_second"]
    same = [row for row in rows if (row["precision"], row["compile"]) ==
            (best["precision"], best["compile"])]  # fmt: skip
    return min(
        (row for row in same if row["images_per_second"] >= enough),
        key=lambda row: row["batch_size"],
    )


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    facts = result["hardware"]
    machine = result["device"]
    if machine == "cpu":
        count = result["threads"]
        machine = f"{count} thread{'s' if count > 1 else ''}, {facts['cores']} cores {facts['cpu']}"
    size = "x".join(map(str, result["image_size"]))
    lines = [
        f"{result['model']}, {size} pixels, {result['what']}, on {machine}",
        "",
        f"{'precision':28} {'batch':>5} {'images/s':>10} {'ms/batch':>10} {'±':>5} {'of limit':>9}",
    ]
    for row in result["rows"]:
        name = row["precision"] + (f", compiled ({row['compile']})" if row["compile"] else "")
        lines.append(
            f"{name:28} {row['batch_size']:5} {row['images_per_second']:10.2f} "
            f"{row['milliseconds_per_batch']:10.1f} {row['spread']:5.0%} {row['utilisation']:9.0%}"
        )
    limits = result["limit_flops_per_second"].items()
    best = result["suggestion"]
    name = best["precision"] + (f" compiled ({best['compile']})" if best["compile"] else "")
    lines += [
        "",
        "limit, GFLOP/s: " + ", ".join(f"{name} {value / 1e9:,.0f}" for name, value in limits),
        f"best here: {name} with batches of {best['batch_size']}, "
        f"{best['images_per_second']:.2f} images/s",
    ]
    if result["what"] == "training step":
        trainer = "bf16-mixed" if best["precision"] == "bf16" else "32-true"
        lines.append(
            f"vit fit ... --trainer.precision {trainer} --data.batch_size {best['batch_size']}"
        )
    return "\n".join(lines)
