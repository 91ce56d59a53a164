"""`vit bench`: images per second of models, and the share of this machine's peak."""

import argparse
import json

from vit.cli.arguments import OneLineParser, pixels, whole_number
from vit.errors import UserError

EPILOG = """\
examples:
  vit bench                                         ViT-B/16 in every precision of the hardware
  vit bench vit_s16 --train --batch-size 8 32 128   the fastest batch for training
  vit bench runs/my_photos-finetune --json          a trained model
  vit bench vit_s16 bit_r50x1 torchvision/resnet50  several models in turns, in one table
  vit bench --serve runs/my_photos-finetune         latency of `vit serve` with 1, 8 and 32 clients

The peak is the rate of the model's matrix products alone, measured in the same minutes. The share
counts multiply-adds only, so that all other operations appear as lost speed."""


def parser() -> OneLineParser:
    """The options of `vit bench`."""
    command = OneLineParser(
        prog="vit bench",
        description="Measures images per second of models, and the share of this machine's peak.",
        epilog=EPILOG,
    )
    add = command.add_argument
    add("models", nargs="*", metavar="MODEL",
        help="a name (`vit models`), torchvision/NAME, a run, or a file of weights "
        "(default: vit_b16); several are measured in turns")  # fmt: skip
    add("--image-size", type=pixels, metavar="N", help="pixels: 224, or 192x256 (height first)")
    add("--batch-size", type=whole_number, nargs="+", default=[], metavar="N",
        help="images per batch (default: 1 and 8; on GPUs 1, 32 and 128)")  # fmt: skip
    add("--train", action="store_true", help="measure training steps, not forward passes")
    add("--precision", nargs="+", choices=("fp32", "bf16"), default=[], metavar="P",
        help="fp32, bf16 or both (default: both if the hardware has bfloat16)")  # fmt: skip
    add("--compile", metavar="MODE", choices=("default", "reduce-overhead", "max-autotune"),
        help="also measure with torch.compile in this mode (reduce-overhead: CUDA graphs)"
        )  # fmt: skip
    add("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    add("--rounds", type=whole_number, default=5, metavar="N",
        help="rounds of each measurement (default: 5)")  # fmt: skip
    add("--serve", action="store_true", help="measure requests to `vit serve MODEL` instead")
    add("--clients", type=whole_number, nargs="+", default=[], metavar="N",
        help="with --serve: clients at once (default: 1, 8 and 32)")  # fmt: skip
    add("--json", action="store_true", help="print one object, or a list for several models")
    return command


def run(args: list[str]) -> int:
    """Prints a table of rates, or JSON."""
    options = parser().parse_intermixed_args(args)
    if options.serve:
        return _serve(options)
    if options.clients:
        raise UserError("--clients needs --serve")
    from vit.extensions.compute.bench import bench
    from vit.extensions.compute.tables import bench_table

    chosen = vars(options)
    as_json, models = chosen.pop("json"), chosen.pop("models")
    del chosen["serve"], chosen["clients"]
    reports = bench(models or ["vit_b16"], **chosen)
    if as_json:
        print(json.dumps(reports[0] if len(reports) == 1 else reports, indent=2))
    else:
        print(bench_table(reports))
    return 0


def _serve(options: argparse.Namespace) -> int:
    used = ("models", "serve", "clients", "json")
    for name, value in vars(options).items():
        if name not in used and value != parser().get_default(name):
            raise UserError(f"--{name.replace('_', '-')} does not go with --serve")
    if len(options.models) != 1:
        raise UserError(f"--serve measures one model, not {len(options.models)}")
    from vit.extensions.compute.serve_load import serve_bench, serve_table

    report = serve_bench(options.models[0], options.clients or [1, 8, 32])
    print(json.dumps(report, indent=2) if options.json else serve_table(report))
    return 0
