"""`vit transfer`: fine-tunes a model to several data sets as the paper does, and tabulates it."""

import os
import shlex
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import OneLineParser
from vit.console import is_first_process, say
from vit.data.catalog import CATALOG, PAPER_GRID, Protocol
from vit.transfer.cells import CellFailed, alone_in
from vit.transfer.plan import COMMAND, Arguments, check_plan, parse_grid, parse_sources
from vit.transfer.table import to_json, to_markdown

if TYPE_CHECKING:
    from vit.data.sources import Splits
from vit.errors import UserError
from vit.signals import Stopped
from vit.writing import writable

DESCRIPTION = """\
Fine-tunes MODEL to each data set: every learning rate of a small grid on train without a slice,
which it is scored on; the best again on all of train, with several seeds; each of these on the
test images, once. Prints and writes a table with mean and standard deviation over the seeds.
Interrupted, the same command goes on, and trains nothing twice."""

EXAMPLE = """\
example:
  vit transfer runs/pretrained --data cifar10,my_photos/,pets=/data/pets --seeds 3
  vit transfer B_16.npz --data cifar10 -- --trainer.callbacks+=vit.training.callbacks.EMA"""


def defaults() -> str:
    """How each data set is transferred to, where the options do not say otherwise."""
    protocols: dict[Protocol, list[str]] = {}
    for name, dataset in CATALOG.items():
        if dataset.paper is not None:
            protocols.setdefault(dataset.paper.transfer, []).append(name)
    lines = ["by default (ViT, arXiv:2010.11929, Table 4):"]
    for protocol in sorted(protocols, key=lambda protocol: -protocol.steps):
        grid = ",".join(map(str, protocol.lr_grid))
        names = ", ".join(protocols[protocol])
        slice_ = f"slice {protocol.val_fraction * 100:g} %"
        lines.append(f"  {names:29}{protocol.steps:>8,} steps   lr {grid:24}{slice_}")
    grid = ",".join(map(str, PAPER_GRID))
    return "\n".join(
        [
            *lines,
            "  others, as BiT-HyperRule          500 steps below 20,000 images, 10,000 below "
            "500,000, else",
            f"                                 20,000         lr {grid:24}slice 10 %",
        ]
    )


def run(args: list[str]) -> int:
    """Makes all cells of the plan that are not there yet, then the tables."""
    own, rest = _split(args)
    options = _parser().parse_args(own)
    arguments = Arguments(
        model=options.model,
        sources=parse_sources(options.data),
        recipe=options.recipe,
        seeds=options.seeds,
        lr_grid=parse_grid(options.lr_grid),
        steps=options.steps,
        image_size=options.image_size,
        val_fraction=options.val_fraction,
        rest=rest,
    )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or not is_first_process():
        raise UserError("start `vit transfer` alone, not by torchrun; it starts processes itself")
    name = Path(options.model.rstrip("/")).name
    out = writable(Path(options.out or f"runs/transfer/{name}").expanduser(), "--out")
    try:
        with alone_in(out):
            check_plan(out / "plan.json", COMMAND, arguments.document())
            _transfer(arguments, out, as_json=options.json)
    except (KeyboardInterrupt, Stopped) as stop:
        say(f"stopped; this continues: {_command(args, options, out)}")
        number = stop.number if isinstance(stop, Stopped) else next(iter(stop.args), SIGINT)
        return 128 + number
    except CellFailed as error:
        say(f"vit: {error}\nthis continues: {_command(args, options, out)}")
        return 1
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit transfer",
        description=DESCRIPTION,
        epilog=f"{defaults()}\n\n{EXAMPLE}",
        formatter_class=RawDescriptionHelpFormatter,
        usage="vit transfer MODEL --data A,B,... [OPTIONS] [-- OPTIONS OF vit fit]",
    )
    parser.add_argument("model", help="a run, a model directory, a weights file or a hub address")
    parser.add_argument(
        "--data",
        required=True,
        metavar="A,B",
        help="data sets by name, folders, CSV or Parquet files; NAME=PATH names the files, and "
        "takes the paper's defaults for that NAME",
    )
    parser.add_argument("--recipe", default="transfer/vit", help="default: transfer/vit")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="final runs (default 3)")
    parser.add_argument(
        "--lr-grid",
        nargs="?",
        metavar="X,Y",
        help="learning rates to choose from; one alone is not searched (default: see below)",
    )
    parser.add_argument("--steps", type=int, metavar="N", help="of every run (default: see below)")
    parser.add_argument("--image-size", type=int, metavar="N", help="default: that of the recipe")
    parser.add_argument(
        "--val-fraction",
        type=float,
        metavar="X",
        help="share of train in the slice, if none is given",
    )
    parser.add_argument("--out", metavar="DIR", help="default: runs/transfer/ and MODEL's name")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    """The arguments before and behind --."""
    at = args.index("--") if "--" in args else len(args)
    return args[:at], args[at + 1 :]


def _command(args: list[str], options: Namespace, out: Path) -> str:
    own, rest = _split(args)
    own += [] if options.out else ["--out", str(out)]
    return shlex.join(["vit", "transfer", *own, *(["--", *rest] if rest else [])])


def _preview(arguments: list[str], check: Callable[[Any], None]) -> "Splits":
    """What a cell would train on: see `vit.transfer.tasks.Preview`."""
    from vit.runs.options import Options

    options = Options(arguments)
    check(options.config)
    data = options.build_data()
    options.build_model(data)
    return data.splits


def _transfer(arguments: Arguments, out: Path, *, as_json: bool) -> None:
    from vit.transfer.run import transfer  # heavy: imports lightning

    rows, about = transfer(arguments, out, _preview)
    print(to_json(rows, about) if as_json else to_markdown(rows), end="")
    say(f"also in {out}: results.md, results.csv, results.json")
    failed = [row.data for row in rows if row.mean is None]
    if failed:
        raise UserError(f"{', '.join(failed)}: all runs diverged; give lower rates by --lr-grid")
