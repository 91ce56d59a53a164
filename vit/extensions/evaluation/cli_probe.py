"""`vit probe`: accuracy of a classifier that is trained on frozen features."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from vit.console import note
from vit.errors import UserError
from vit.extensions.evaluation.cli_frozen import bench_parser, open_bench

if TYPE_CHECKING:
    from vit.data.sources import SplitName
    from vit.extensions.evaluation.probe import ProbeResult

DESCRIPTION = """\
Fits a logistic regression to the features of all training images and evaluates it on test, once.
Its inverse regularisation C is chosen on val, or on a tenth of train. As in DINOv2, in float64.
--kind attentive pools the patches by attention, as in AIM; its learning rate is chosen likewise."""


def run(args: list[str]) -> int:
    """Prints the test accuracy, and the accuracy of each C on the validation images."""
    options = _options(args)

    from vit.extensions.evaluation.probe import HELD_OUT, NUM_C, c_values, probe_accuracy

    if options.kind == "attentive" and options.num_c is not None:
        raise UserError(f"--num-c {options.num_c}: the attentive probe has no C; leave it out")
    num_c = NUM_C if options.num_c is None else options.num_c
    c_values(num_c)  # a bad value ends it before anything is computed
    bench = open_bench(options, "patches" if options.kind == "attentive" else "pre_logits")
    parts: list[SplitName] = ["train", bench.split]
    if bench.split == "test" and bench.data.splits.val is not None:
        parts.append("val")
    of_parts = [bench.features(split) for split in parts]
    train, test, *val = [(features.values, features.labels) for features in of_parts]
    inputs: Any = (train, test, bench.data.num_classes)
    groups = bench.data.image_set("train").groups
    groups = None if groups is None else groups.select(of_parts[0].indices)
    choice: Any = {"val": val[0] if val else None, "groups": groups}
    if options.kind == "attentive":
        from vit.extensions.evaluation.attentive import attentive_accuracy

        extractor: Any = bench.frozen.extractor
        inputs += (extractor.model.config.num_heads,)
        result = attentive_accuracy(*inputs, **choice, device=extractor.device)
    else:
        device = bench.frozen.solver_device
        result = probe_accuracy(*inputs, **choice, num_c=num_c, device=device)
    if not result.converged:
        note("the last fit did not converge")
    seen = len(train[1]) + sum(len(labels) for _, labels in val)
    about = {"model": options.model, **bench.about(seen, len(test[1])), "kind": options.kind}
    _show(about, result, "val" if val else f"{HELD_OUT:.0%} of train", options.json)
    return 0


def _options(args: list[str]) -> Namespace:
    parser = bench_parser("probe", DESCRIPTION)
    parser.add_argument(
        "--num-c",
        type=int,
        metavar="N",
        help="number of values of C from 1e-6 to 1e5 (default: 12, powers of ten; DINOv2: 45)",
    )
    kinds = ("logistic", "attentive")
    text = "attentive holds all patches in memory, in float16 (default: logistic)"
    parser.add_argument("--kind", choices=kinds, default="logistic", help=text)
    return parser.parse_args(args)


def _show(about: dict[str, object], result: "ProbeResult", chosen_on: str, as_json: bool) -> None:
    name = "c" if about["kind"] == "logistic" else "rate"
    if as_json:
        document = {
            **about,
            "accuracy": result.accuracy,
            name: result.chosen,
            "chosen_on": chosen_on,
            "converged": result.converged,
            "sweep": [{name: value, "accuracy": share} for value, share in result.sweep.items()],
        }
        print(json.dumps(document, indent=2))
        return
    print(f"{name.capitalize():>10} {'accuracy on ' + chosen_on + ', %':>30}")
    for value, share in result.sweep.items():
        print(f"{value:10.4g} {100 * share:30.2f}{'  chosen' if value == result.chosen else ''}")
    print(f"{about['split']} accuracy on {about['data']}  {result.accuracy:.4f}", end="")
    print(f"  ({about['test_images']:,} images)")
