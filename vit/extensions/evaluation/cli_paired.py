"""`vit test RUN OTHER`: two runs on the same images."""

import json
from argparse import Namespace
from pathlib import Path

from vit.console import show
from vit.extensions.evaluation.paired import compare


def compare_two(options: Namespace, first: Path, rest: list[str]) -> int:
    """Prints the scores of two runs, and how sure their difference is; returns the exit status.

    `rest`: options of the data and the Trainer.
    """
    result = compare(first, Path(options.other).expanduser(), options.split, rest)
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    a, b = result["runs"]
    what = "accuracy" if result["metric"] == "acc1" else "mean average precision"
    show(f"{what} on {result['images']:,} images of {result['split']}")
    for run, score in zip((a, b), result["scores"], strict=True):
        show(f"{run:{max(len(a), len(b))}}  {score:.4f}")
    interval = "95 % interval {:+.2f} to {:+.2f}".format(*result["interval"])
    show(f"second minus first {result['difference']:+.2f} points, {interval}")
    show(f"  by {result['method']}")
    if "gained" in result:
        alone = "named rightly by the second alone: {gained:,} images; by the first alone: {lost:,}"
        show(alone.format_map(result))
    better, worse = (b, a) if result["difference"] > 0 else (a, b)
    no = "no difference is seen: the images are too few, or the runs are equally good"
    show(f"{better} is better than {worse}" if result["differ"] else no)
    return 0
