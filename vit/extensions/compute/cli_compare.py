"""`vit compare`: what models cost, in operations and memory, and for a whole training."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from textwrap import fill
from typing import Any

from vit.cli.arguments import OneLineParser, number, pixels, share, whole_number
from vit.console import say
from vit.errors import UserError
from vit.extensions.compute.cost import DEVICES, STRATEGIES, UTILISATION
from vit.extensions.compute.table6 import TITLES

EPILOG = f"""\
examples:
  vit compare vit_b16 vit_l16 bit_r50x1 r50_vit_b16 torchvision/resnet50
  vit compare vit_b16 --image-size 224 384 --device h100       the largest batch in its memory
  vit compare vit_giant14 --devices 8 64 --device h100         memory of each, ddp and fsdp2
  vit compare --recipe jft                                     the paper's Table 6 beside ours
  vit compare --recipe imagenet1k/vit_b16 --device h100 --utilisation 0.4 --price-per-hour 2.5
  vit compare --recipe jft --runs runs/* --figure compute.png  your runs in the paper's Figure 5

devices: {" ".join(DEVICES)}"""


# fmt: off
def parser() -> OneLineParser:
    """The options of `vit compare`."""
    command = OneLineParser(
        prog="vit compare",
        description="Prints parameters, operations and memory of models, and for a recipe the\n"
        "operations, days and price of a whole training. `vit bench` measures speed.",
        epilog=EPILOG,
    )
    add = command.add_argument
    add("models", nargs="*", metavar="MODEL",
        help="a name (`vit models`), torchvision/NAME, a run, or a file of weights")
    add("--image-size", nargs="+", type=pixels, metavar="N", default=[],
        help="pixels, such as 224, or 192x256 (height first); several are compared")
    add("--classes", type=whole_number, metavar="K", help="outputs of the head (default: 1000)")
    add("--precision", choices=("bf16", "fp32"), help="of training: bf16 (mixed; default) or fp32")
    add("--memory", type=number, metavar="GIB",
        help="for the largest batch (default: that of --device)")
    add("--devices", nargs="+", type=whole_number, metavar="N", default=[],
        help="number of them, for the memory of one; several compare")
    add("--strategy", choices=STRATEGIES, help="how devices share the work (default: both)")
    add("--ema", action="store_true", help="with a moving average of the weights")
    add = command.add_argument_group("whole trainings").add_argument
    add("--recipe", metavar="NAME",
        help="jft (the paper's Table 6), a recipe of `vit fit`, or a file")
    add("--images", type=number, metavar="N", help="training images per epoch")
    add("--epochs", type=number, metavar="N", help="epochs in place of the recipe's")
    add("--processes", type=whole_number, metavar="N",
        help="processes that share a recipe's batch (default: 1)")
    add("--device", type=str.lower, choices=DEVICES, metavar="NAME",
        help="accelerator for days, price and memory (listed below)")
    add("--utilisation", type=share, metavar="SHARE",
        help=f"share of its peak that training reaches (default: {UTILISATION})")
    add("--price-per-hour", type=number, metavar="X", help="price of one device, in your currency")
    add("--runs", nargs="+", metavar="RUN", default=[], help="finished runs of `vit fit`")
    add = command.add_argument_group("output").add_argument
    add("--figure", type=Path, metavar="FILE.png",
        help="draw accuracy against compute (with --recipe jft or --runs)")
    add("--accuracy", choices=TITLES, help="data of the paper's points in it")
    add("--json", action="store_true", help="print a list of objects")
    return command
# fmt: on


def run(args: list[str]) -> int:
    """Prints one row per model and size, a training, or a run."""
    options = parser().parse_intermixed_args(args)
    _check(options)

    from vit.extensions.compute.comparison import model_rows, training_rows
    from vit.extensions.compute.tables import model_table, training_table
    from vit.extensions.compute.trainings import CostOptions

    values = {f.name: getattr(options, f.name) for f in fields(CostOptions)}
    comparison = CostOptions(**{name: value for name, value in values.items() if value is not None})
    if options.recipe is None and not options.runs:
        rows, notes = model_rows(comparison)
        text = model_table(rows)
    else:
        rows, notes = training_rows(comparison)
        text = training_table(rows)
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        print("\n".join([text, "", *(fill(note, 100) for note in notes)]))
    if options.figure is not None:
        _draw(options, rows)
    return 0


def _check(options: argparse.Namespace) -> None:
    """UserError for an option that would have no effect."""
    whole = options.recipe is not None or bool(options.runs)
    if not options.models and not whole:
        raise UserError("nothing to compare: name a model, such as vit_b16, or a --recipe")
    if options.models and options.runs and options.recipe is None:
        raise UserError("--runs beside models needs a --recipe that says how long those train")
    dependent = (
        ("images", options.recipe, "--recipe"),
        ("epochs", options.recipe, "--recipe"),
        ("processes", options.recipe not in (None, "jft"), "a --recipe of `vit fit`"),
        ("device", whole or not options.device or DEVICES[options.device].memory,
         "a --recipe or --runs: its memory is not known"),
        ("utilisation", options.device and whole, "--device and a --recipe or --runs"),
        ("price_per_hour", options.device and whole, "--device and a --recipe or --runs"),
        ("figure", options.recipe == "jft" or options.runs, "--recipe jft or --runs"),
        ("accuracy", options.figure, "--figure"),
        ("memory", not whole, "models, not a --recipe or --runs"),
        ("devices", not whole, "models, not a --recipe or --runs"),
        ("strategy", options.devices, "--devices"),
        ("ema", options.devices, "--devices"),
        ("precision", not whole, "models, not a --recipe or --runs"),
        ("image_size", options.recipe or not whole, "models or a --recipe"),
        ("classes", options.recipe or not whole, "models or a --recipe"),
    )  # fmt: skip
    for name, met, needed in dependent:
        if getattr(options, name) and not met:
            raise UserError(f"--{name.replace('_', '-')} needs {needed}")
    if options.recipe and len(options.image_size) > 1:
        raise UserError(f"--image-size: a recipe has one, not {len(options.image_size)}")


def _draw(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    from vit.extensions.compute.table6 import TABLE6, column_of
    from vit.extensions.reports.drawing import png
    from vit.extensions.reports.scaling import compute_figure

    scored = [row for row in rows if row.get("accuracy") is not None]
    column = options.accuracy or column_of(row["dataset"] for row in scored)
    figure = compute_figure(rows, TABLE6, column, TITLES[column])
    options.figure.expanduser().write_bytes(png(figure))
    say(f"figure: {options.figure}")
