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
    found = compare(first, Path(options.other).expanduser(), options.split, rest)
    if options.json:
        print(json.dumps(found, indent=2))
        return 0
    a, b = found["runs"]
    what = "accuracy" if found["metric"] == "acc1" else "mean average precision"
    show(f"{what} on {found['images']:,} images of {found['split']}")
    for run, score in zip((a, b), found["scores"], strict=True):
        show(f"{run:{max(len(a), len(b))}}  {score:.4f}")
    low, high = found["interval"]
    show(f"difference {found['difference']:+.2f} points, 95 % interval {low:+.2f} to {high:+.2f}")
    show(f"  by {found['method']}")
    if "p_value" in found:
        show(
            f"{found['gained']:,} images are named rightly by the second alone, {found['lost']:,} "
            f"by the first alone: p = {found['p_value']:.2g} (McNemar's exact test)"
        )
    better, worse = (b, a) if found["difference"] > 0 else (a, b)
    no = "no difference is seen: the images are too few, or the runs are equally good"
    show(f"{better} is better than {worse}" if found["differ"] else no)
    return 0
