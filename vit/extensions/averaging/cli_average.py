"""`vit average`: one model with the mean of the weights of several runs."""

import json
import re
from pathlib import Path

from vit.cli.arguments import OneLineParser
from vit.console import show
from vit.runs.short_names import Words

EPILOG = """\
The runs must be of one architecture and of the same images and classes, such as fits from the same
pretrained weights with other learning rates, or with other seeds and one --data.splits.seed. Fits
from random weights seldom average well.

example:
  vit average runs/a runs/b runs/c --out soup

The options of `vit fit` for the data and the Trainer work too, such as --data.batch_size."""


def run(args: list[str]) -> int:
    """Writes the model, and prints its score on val beside those of the runs."""
    usage = "vit average RUN RUN... --out DIR [--json] [OPTIONS]"
    about = "Writes a model with the mean of the weights of several runs, and scores it on val."
    parser = OneLineParser(prog="vit average", usage=usage, description=about, epilog=EPILOG)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories")
    parser.add_argument("--out", metavar="DIR", required=True, help="model directory to write")
    parser.add_argument("--json", action="store_true", help="print one object")
    dotted = re.compile(r"--(data|trainer)[.=]").match
    words = Words(args).written
    options = parser.parse_args([word for word in words if not dotted(word)])

    from vit.extensions.averaging.soup import average

    runs = [Path(run).expanduser() for run in options.runs]
    result = average(runs, Path(options.out).expanduser(), [word for word in words if dotted(word)])
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    what = "accuracy" if result["metric"] == "acc1" else "mean average precision"
    show(f"{what} on {result['images']:,} images of val")
    width = max(map(len, ["average", *result["runs"]]))
    for name, score, pair in zip(result["runs"], result["scores"], result["against"], strict=True):
        low, high = pair["interval"]
        gain = f"{pair['difference']:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}"
        show(f"{name:{width}}  {score:.4f}  average: {gain}")
    show(f"{'average':{width}}  {result['score']:.4f}")
    show(f"  differences by {result['against'][0]['method']}")
    show(f"{result['out']}  for vit classify, vit.load and --pretrained")
    return 0
