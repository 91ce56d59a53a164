"""`vit fewshot`: accuracy of a ridge classifier on the features of a few images per class."""

import json
from argparse import Namespace
from typing import Any

from vit.cli.arguments import whole_number
from vit.extensions.evaluation.cli_frozen import bench_parser, open_bench, usual

DESCRIPTION = """\
Fits a ridge regression to the features of a few training images per class and evaluates it on test;
prints mean and standard deviation over several draws. As big_vision's fewshot_lsr, in float64."""


def run(args: list[str]) -> int:
    """Prints one row per number of images per class."""
    options = _options(args)

    from vit.extensions.evaluation.fewshot import L2, SHOTS, check_shots, few_shot_accuracy

    bench = open_bench(options, "pre_logits")
    classes, l2 = bench.data.classes, L2 if options.l2 is None else options.l2
    least = min(bench.data.counts)
    note = f"the smallest class has {least} training images, so there are no rows of"
    shots = sorted(set(options.shots or usual(SHOTS, least, note)))
    check_shots(bench.data.image_set("train").labels, classes, shots, l2)
    train, test = bench.features("train"), bench.features(bench.split)
    accuracies = few_shot_accuracy(
        (train.values, train.labels),
        (test.values, test.labels),
        classes,
        shots=shots,
        seeds=range(options.seeds),
        l2=l2,
    )
    rows = [_row(count, draws) for count, draws in accuracies.items()]
    if options.json:
        about = {"model": options.model, **bench.about(len(train.labels), len(test.labels))}
        document = {**about, "l2": l2, "seeds": list(range(options.seeds)), "rows": rows}
        print(json.dumps(document, indent=2))
        return 0
    print(f"{bench.split} accuracy on {bench.name} in %, {len(test.labels):,} images")
    print(f"{'shots':>5} {'mean':>7} {'std':>6}   each draw")
    for row in rows:
        std = "-" if row["std"] is None else f"{100 * row['std']:.2f}"
        each = " ".join(f"{100 * share:.2f}" for share in row["accuracies"])
        print(f"{row['shots']:5} {100 * row['mean']:7.2f} {std:>6}   {each}")
    return 0


def _row(shots: int, accuracies: list[float]) -> dict[str, Any]:
    import numpy as np  # not for help

    std = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None
    mean = float(np.mean(accuracies))
    return {"shots": shots, "mean": mean, "std": std, "accuracies": accuracies}


def _options(args: list[str]) -> Namespace:
    parser = bench_parser("fewshot", DESCRIPTION)
    add = parser.add_argument
    add("--shots", type=int, nargs="+", metavar="N", help="images per class (default: 1 5 10 25)")
    text = "number of draws, with seeds 0 to N-1 (default: 3)"
    add("--seeds", type=whole_number, default=3, metavar="N", help=text)
    add("--l2", type=float, metavar="X", help="strength of the regularisation (default: 1024)")
    return parser.parse_args(args)
