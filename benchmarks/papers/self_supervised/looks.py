"""How often a rule of looks at a labelled folder stops a healthy run, and how soon a sick one.

    python -m benchmarks.papers.self_supervised.looks

A run has 20 looks. Each image has a margin, normal over images, and is named rightly above 0; 70 %
are at the start. From look to look the margins follow a stationary process (a correlation of 0.97),
so that images are lost and gained without a change of the accuracy. A healthy run gains 0, 1 or 3
points along the looks, a sick one has lost 1, 3 or 10 points from the first look on. Four rules:

- ours: the exact sign test is below 0.05 / looks twice in succession (vit.extensions.ssl.watch);
- once: the same, once;
- paired: the 95 % interval of the paired difference is below 0, once;
- own interval: the accuracy is below the 95 % interval of the one at the start, once.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.lib.harness import arguments, document, publish
from vit.console import Meter
from vit.extensions.reports.intervals import Paired, wilson_interval
from vit.extensions.serving.proof import paired
from vit.extensions.ssl.watch import SUCCESSION, is_worse

LOOKS, RUNS, START, KEPT = 20, 200, 0.7, 0.97
SIZES = (250, 1_000, 4_000)
HEALTHY, SICK = (0.0, 1.0, 3.0), (1.0, 3.0, 10.0)
"""Points gained at the end of the run; points lost from the first look on."""
seems_worse = cache(partial(is_worse, looks=LOOKS))
# Rule -> (is a look worse than the start?, looks in succession).
RULES: dict[str, tuple[Callable[[Paired], bool], int]] = {
    "ours": (seems_worse, SUCCESSION),
    "once": (seems_worse, 1),
    "paired": (lambda pair: pair.interval[0] > 0, 1),
    "own interval": (
        lambda pair: pair.after / pair.count < wilson_interval(pair.before, pair.count)[0],
        1,
    ),
}


def answers(images: int, points: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """True (looks + 1, images) for images that are named rightly, at accuracies that differ from
    the start's by `points` (looks + 1,)."""
    margins, rows = random.standard_normal(images), []
    for accuracy in START + points / 100:
        rows.append(margins > -norm.ppf(accuracy))
        noise = random.standard_normal(images)
        margins = KEPT * margins + (1 - KEPT**2) ** 0.5 * noise
    return np.stack(rows)


def stopped_at(rule: str, pairs: list[Paired]) -> int | None:
    """The look at which a rule ends a run, from 1; None if none does."""
    worse, needed = RULES[rule]
    row = 0
    for look, pair in enumerate(pairs, start=1):
        row = row + 1 if worse(pair) else 0
        if row == needed:
            return look
    return None


def measured(images: int, points: np.ndarray, runs: int) -> dict[str, Any]:
    """For each rule the share of the runs that it stops, and the median look at which it does."""
    looks: dict[str, list[int | None]] = {rule: [] for rule in RULES}
    for run in range(runs):
        hits = answers(images, points, np.random.default_rng([run, images]))
        pairs = [paired(hits[0], row) for row in hits[1:]]
        for rule, each in looks.items():
            each.append(stopped_at(rule, pairs))
    result = {}
    for rule, each in looks.items():
        stops = [look for look in each if look is not None]
        low, high = wilson_interval(len(stops), runs)
        result[rule] = {
            "stopped": len(stops),
            "share": len(stops) / runs,
            "interval": [round(low, 3), round(high, 3)],
            "median_look": float(np.median(stops)) if stops else None,
        }
    return result


def main(words: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__).parse_args(words)
    runs, sizes = (5, SIZES[:1]) if options.quick else (RUNS, SIZES)
    kinds = [("healthy", gain, np.linspace(0, gain, LOOKS + 1)) for gain in HEALTHY]
    kinds += [("sick", -loss, np.array([0.0] + [-loss] * LOOKS)) for loss in SICK]
    rows = []
    with Meter("looks", len(kinds) * len(sizes), "settings") as meter:
        for images in sizes:
            for kind, points, course in kinds:
                rules = measured(images, course, runs)
                rows.append({"images": images, "kind": kind, "points": points, "rules": rules})
                meter.advance(1)
    settings = {"looks": LOOKS, "runs": runs, "start": START, "correlation": KEPT}
    content = document("looks", rows, settings=settings)
    publish(content, options, "papers/self_supervised/looks")
    return content


if __name__ == "__main__":
    main()
