"""`vit tune`: options for a data set, chosen within a time and compared with the default."""

import json
import shlex
from typing import Any

from vit.cli.arguments import OneLineParser, whole_number
from vit.console import clock, show
from vit.extensions.transfer.cli_trainings import trainings

DESCRIPTION = """\
Tries encoders, methods, learning rates, augmentations and image sizes on a part of train, with
short trainings first, and scores the best and the default recipe, three times each, on the test
images. If interrupted, the same command continues; started twice, the two share the work."""

EXAMPLE = """\
The options that are tried, and what each file holds: docs/tune.md.

examples:
  vit tune --data my_photos/ --budget 2h
  vit tune --data my_photos/ --budget 8h --pretrained dinov2_s14 --pretrained vit_s16"""


def run(args: list[str]) -> int:
    """Trains what is left of the plan, and prints the comparison."""
    at = args.index("--") if "--" in args else len(args)
    fields = vars(_parser().parse_args(args[:at]))
    as_json, shard = fields.pop("json"), fields.pop("shard")
    from vit.extensions.answers.cli_answer_out import part_of
    from vit.extensions.tune.tune import tune  # heavy: imports lightning

    with trainings("tune", args):
        result = tune(**fields, shard=part_of(shard), rest=args[at + 1 :])
    show(json.dumps(result, indent=1) if as_json else _text(result))
    return 0


def _text(result: dict[str, Any]) -> str:
    """The rungs, the options, and the comparison on test."""
    lines, unit = list[str](), "mAP, %" if result["metric"] == "map" else "%"
    for rung in result["rungs"]:
        head = f"cell, {rung['steps']} steps"
        lines += ["", f"{head:44} {'val, ' + unit:>11} {'time':>8}"]
        for name, score in sorted(rung["val"].items(), key=lambda pair: -(pair[1] or 0)):
            value = rung["failed"].get(name, "cut off") if score is None else f"{100 * score:.2f}"
            seconds = rung["seconds"].get(name)
            lines.append(f"{name:44} {value:>11} {'' if seconds is None else clock(seconds):>8}")
    lines += ["", "option alone: points on val over the default's value, 95 % interval, pairs"]
    for row in result["options"]:
        lines.append(f"{row['option'] + ' ' + row['value']:30} {_points(row)} {row['pairs']:4}")
    lines += ["", *(f"not begun in time: {name}" for name in result["cut"])]
    for kind, scores in result["test"].items():
        values = ", ".join("-" if score is None else f"{100 * score:.2f}" for score in scores)
        name = f" ({result['winner']})" if kind == "best" else ""
        lines.append(f"test, {unit}, {result['steps']} steps, {kind}{name}: {values}")
    difference = result["difference"]
    gain = difference is not None and difference["interval"][0] > 0
    if difference is not None:
        lines.append(f"best over default on test, 95 % interval: {_points(difference)}")
    lines.append("a gain over the default" if gain else "no gain over the default")
    best = shlex.quote(f"{result['run']}/{'best' if gain else [*result['test']][-1]}")
    return "\n".join([*lines, "next:", f"  vit classify {best} PHOTO", f"  vit test {best}"])


def _points(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{row['points']:+7.2f}  {low:+7.2f} to {high:+7.2f}"


def _parser() -> OneLineParser:
    usage = "vit tune --data DATA --budget TIME [OPTIONS] [-- OPTIONS OF vit fit]"
    words = {"description": DESCRIPTION, "epilog": EXAMPLE, "usage": usage}
    parser = OneLineParser(prog="vit tune", **words)
    add = parser.add_argument
    add("--data", required=True, help="images as of `vit fit --data`")
    add("--budget", required=True, metavar="TIME", help="such as 20m, 2h or 1h30m")
    text = "an encoder to try; the first is the default's (default: the recipe's, and the cache's)"
    add("--pretrained", action="append", default=[], metavar="X", help=text)
    add("--run_dir", "--run-dir", metavar="RUN", help="default: runs/tune/DATA")
    text = "score a cell by a run for each of N folds of train and val, not by one val"
    add("--folds", type=whole_number, metavar="N", help=text)
    text = "part I (from 0) of N machines that share RUN; auto: the job's (default: 0/1)"
    add("--shard", default="0/1", metavar="I/N", help=text)
    add("--seed", type=int, default=0, metavar="N", help="of cells, splits and trainings")
    add("--json", action="store_true", help="print the result as JSON")
    return parser
