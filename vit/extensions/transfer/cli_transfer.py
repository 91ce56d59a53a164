"""`vit transfer`: fine-tunes a model to several data sets as the paper does, and tabulates it."""

from pathlib import Path

from vit.cli.arguments import OneLineParser, number, share, whole_number
from vit.console import say
from vit.errors import UserError
from vit.extensions.evaluation.cli_frozen import data_sets
from vit.extensions.transfer.cli_trainings import trainings
from vit.extensions.transfer.transfer_table import to_json, to_markdown

DESCRIPTION = """\
Fine-tunes MODEL on each data set. Every learning rate of a small grid is tried on a part of train
and scored on the rest; the best is used on all of train with several seeds, and each of these runs
is evaluated once on the test images. Prints and writes a table with mean and standard deviation
over the seeds. If interrupted, the same command continues and trains nothing twice."""

EXAMPLE = """\
The paper's steps, rates and shares (arXiv:2010.11929, Table 4) are in docs/transfer.md.

examples:
  vit transfer runs/pretrained --data cifar10,my_photos/,pets=/data/pets --seeds 3
  vit transfer B_16.npz --data vtab=/data/vtab-1k      # 19 tasks (docs/vtab.md)
  vit transfer B_16.npz --data cifar10 -- --trainer.callbacks+=vit.EMA"""


def run(args: list[str]) -> int:
    """Trains the unfinished runs, and prints the table."""
    at = args.index("--") if "--" in args else len(args)
    options = _parser().parse_args(args[:at])
    sources = data_sets(options.data)
    from vit.extensions.transfer.transfer import Plan, transfer  # heavy: imports lightning

    names = ("model", "recipe", "seeds", "lr_grid", "steps", "image_size", "val_fraction", "folds")
    fields = {name: getattr(options, name) for name in names}
    plan = Plan(**fields, sources=sources, rest=args[at + 1 :])
    name = Path(options.model.rstrip("/")).name
    out = Path(options.out or f"runs/transfer/{name}").expanduser()
    with trainings("transfer", args):
        rows, about = transfer(plan, out)
    print(to_json(rows, about) if options.json else to_markdown(rows), end="")
    say(f"also in {out}: results.md, results.json")
    failed = [row.data for row in rows if row.result["mean"] is None]
    if failed:
        raise UserError(f"{', '.join(failed)}: all runs diverged; give lower rates by --lr-grid")
    return 0


def rates(text: str) -> tuple[float, ...]:
    """'0.003,0.001' as numbers above 0, ascending."""
    return tuple(sorted({number(item) for item in text.split(",")}))


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit transfer",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        usage="vit transfer MODEL --data A,B,... [OPTIONS] [-- OPTIONS OF vit fit]",
    )
    add = parser.add_argument
    add("model", help="a run, a model directory, a weights file or a hub address")
    add(
        "--data",
        required=True,
        metavar="A,B",
        help="data sets by name, folders, CSV or Parquet files; NAME=PATH names the files and "
        "uses the paper's settings for that NAME",
    )
    add("--recipe", help="default: transfer/vit; for vtab=ROOT transfer/vtab")
    add("--seeds", type=whole_number, default=3, metavar="N", help="final runs (default: 3)")
    add(
        "--lr-grid",
        type=rates,
        metavar="X,Y",
        help="learning rates to choose from; a single one is used as it is (default: the paper's)",
    )
    add("--steps", type=whole_number, metavar="N", help="steps of every run (default: the paper's)")
    add("--image-size", type=whole_number, metavar="N", help="pixels (default: the recipe's)")
    add("--val-fraction", type=share, metavar="X", help="share of train that scores the rates")
    text = "score a rate by a run for each of N folds of train, not by a slice"
    add("--folds", type=whole_number, metavar="N", help=text)
    add("--out", metavar="DIR", help="default: runs/transfer/MODEL")
    add("--json", action="store_true", help="print the result as JSON")
    return parser
