"""`vit probe`: accuracy of logistic regression on frozen features."""

import json

from vit.cli.frozen import bench_parser, open_bench
from vit.console import note

DESCRIPTION = """\
Fits a logistic regression to the features of all training images and evaluates it on test, once.
Its inverse regularisation C is chosen on val, or on a tenth of train. As DINOv2's, in float64."""


def run(args: list[str]) -> int:
    """Prints the test accuracy, and the accuracy of each C on the validation images."""
    parser = bench_parser("probe", DESCRIPTION)
    parser.add_argument(
        "--num-c",
        type=int,
        metavar="N",
        help="values of C, from 1e-6 to 1e5 (default 12: powers of ten; DINOv2 takes 45)",
    )
    options = parser.parse_args(args)

    from vit.evaluation.probe import HELD_OUT, NUM_C, c_values, probe_accuracy

    num_c = NUM_C if options.num_c is None else options.num_c
    c_values(num_c)  # a bad value ends it before anything is computed
    bench = open_bench(options, "pre_logits")
    train, test = bench.features("train"), bench.features(bench.split)
    val = None
    if bench.split == "test" and bench.data.splits.val is not None:
        val = bench.features("val")
    result = probe_accuracy(
        (train.values, train.labels),
        (test.values, test.labels),
        bench.data.num_classes,
        val=None if val is None else (val.values, val.labels),
        num_c=num_c,
        device=bench.frozen.solver_device,
    )
    chosen_on = f"{HELD_OUT:.0%} of train" if val is None else "val"
    if not result.converged:
        note("the last fit did not converge")
    if options.json:
        seen = len(train.labels) + (0 if val is None else len(val.labels))
        document = {
            "model": options.model,
            **bench.about(seen, len(test.labels)),
            "accuracy": result.accuracy,
            "c": result.c,
            "chosen_on": chosen_on,
            "converged": result.converged,
            "sweep": [{"c": c, "accuracy": share} for c, share in result.sweep.items()],
        }
        print(json.dumps(document, indent=2))
        return 0
    print(f"{'C':>10} {'accuracy on ' + chosen_on + ', %':>30}")
    for c, share in result.sweep.items():
        print(f"{c:10.4g} {100 * share:30.2f}{'  chosen' if c == result.c else ''}")
    print(f"{bench.split} accuracy on {bench.name}  {result.accuracy:.4f}", end="")
    print(f"  ({len(test.labels):,} images)")
    return 0
