"""`vit folds`: cross-validation, and a run on all images for as long as its folds needed."""

import json
from pathlib import Path
from typing import Any

from vit.cli.arguments import OneLineParser, whole_number
from vit.console import say, show
from vit.extensions.transfer.cli_trainings import trainings

DESCRIPTION = """\
Trains a run for each of N folds of train and val, which leaves the fold out and is scored on it:
RUN/folds/1, 2, ... Then RUN itself, on all of them, for the median of the steps at which these were
best, with temperature and thresholds by their answers to the images that they left out. Test is
scored by RUN alone. If interrupted, the same command continues and trains nothing twice. Other
options are those of `vit fit`, and `vit fit --folds N` is the same command."""

EXAMPLE = """\
What the interval says, and which files there are: docs/folds.md

examples:
  vit folds --data my_photos/ --run_dir runs/photos
  vit folds -c probe --data list.csv --data.columns.group patient --folds 10 --run_dir runs/probe"""


def run(args: list[str]) -> int:
    """Trains the unfinished runs, and prints the scores."""
    parser = OneLineParser(
        prog="vit folds",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        usage="vit folds --data MY_PHOTOS --run_dir RUN [--folds N] [-c RECIPE] [OPTIONS]",
    )
    text = "folds, and runs beside the final one (default: 5)"
    parser.add_argument("--folds", type=whole_number, default=5, metavar="N", help=text)
    text = "directory of the final run, and of those of the folds"
    parser.add_argument("--run_dir", "--run-dir", required=True, metavar="RUN", help=text)
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    options, rest = parser.parse_known_args(args)

    from vit.extensions.folds.folds import Folds  # heavy: imports lightning

    folder = Path(options.run_dir).expanduser()
    with trainings("folds", args):
        result, closing = Folds(arguments=rest, folds=options.folds, run=folder).train()
    if options.json:
        say(closing)
        print(json.dumps(result, indent=1))
    else:
        show(f"{_table(result)}\n{closing}")
    return 0


def _table(result: dict[str, Any]) -> str:
    """The scores for people."""
    name = "accuracy" if result["metric"] == "acc1" else "mean average precision"
    lines = [f"{'fold':>5}{'train':>10}{'left out':>10}{'steps':>10}  {name}"]
    for row in result["folds"]:
        sizes = "".join(f"{row[key]:>10,}" for key in ("train", "images", "steps"))
        lines.append(f"{row['fold']:>5}{sizes}  {row['score']:.4f}")
    low, high = result["interval"]
    if low < high:
        lines.append(f"mean {result['mean']:.4f}, 95 % interval {low:.4f} to {high:.4f} for a run")
        lines.append(f"  on as many images as a fold's run, by the {result['method']}")
    else:
        lines.append(f"mean {result['mean']:.4f}; equal scores of all folds give no interval")
    lines.append(f"all {result['images']:,} images together {result['pooled']:.4f}")
    return "\n".join(lines)
