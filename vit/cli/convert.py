"""`vit convert`: converts weights between formats, or compares two files."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from vit.checkpoints.formats import FORMATS
from vit.cli.arguments import OneLineParser
from vit.console import note
from vit.errors import UserError, did_you_mean

HELP = "convert weights between formats, or compare two files"

EPILOG = """\
examples:
  vit convert B_16.npz my_model --to native           Google's file as a model directory of ours
  vit convert runs/pets my_model --to huggingface     a run for transformers
  vit convert B_16.npz my_model --compare             largest difference of the logits
"""


def run(args: list[str]) -> int:
    """Runs the command and returns its exit status."""
    parser = OneLineParser(
        prog="vit convert",
        description=HELP[0].upper() + HELP[1:] + ".",
        epilog=f"{EPILOG}\n{_written()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="weights: a run, a directory, a file, or a hub address")
    parser.add_argument("destination", help="where to write, or the second file to compare")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--to", choices=FORMATS, help="the library to write for")
    action.add_argument("--compare", action="store_true", help="print the difference of the logits")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="a field of the model's configuration that the file does not record, such as "
        "activation=gelu_tanh; may be repeated",
    )
    parser.add_argument(
        "--num-heads",
        action="append",
        dest="set",
        type="num_heads={}".format,
        help="the same as --set num_heads=NUM_HEADS",
    )
    parser.add_argument(
        "--image-size",
        type=int,
        nargs=2,
        metavar=("HEIGHT", "WIDTH"),
        help="pixels to resize the positions to, or to compare at",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace the model that the destination holds"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    given = parser.parse_args(args)
    options = _fields(given.set)
    if given.image_size and "image_size" in options:
        raise UserError("image_size is given twice: by --set and by --image-size")
    if given.image_size:
        options["image_size"] = tuple(given.image_size)
    from vit.checkpoints.layout import MissingFact

    try:
        return _run(given, options)
    except MissingFact as fact:
        raise UserError(fact.for_convert()) from fact


def _written() -> str:
    """What each format writes, for the help."""
    *names, last = (name for name, suffix in FORMATS.items() if not suffix)
    files = "".join(f", {name} a {suffix} file" for name, suffix in FORMATS.items() if suffix)
    return f"{', '.join(names)} and {last} write a directory{files}."


def _fields(assignments: list[str]) -> dict[str, Any]:
    """Values of the fields by name: parsed as JSON, else text."""
    from dataclasses import fields

    from vit.models.config import ResNetConfig, ViTConfig

    known = {field.name for kind in (ViTConfig, ResNetConfig) for field in fields(kind)}
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not text:
            raise UserError(f"--set {assignment} is not FIELD=VALUE, such as --set num_heads=12")
        if name not in known:
            raise UserError(f"--set {assignment}: no such field{did_you_mean(name, sorted(known))}")
        if name in values:
            raise UserError(f"{name} is given twice: --set {name}={values[name]} and {assignment}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _run(given: argparse.Namespace, options: dict[str, Any]) -> int:
    if given.compare:
        if given.overwrite:
            raise UserError("--overwrite needs --to; --compare writes nothing")
        return _compare(given.source, given.destination, options, given.json)
    options["overwrite"] = given.overwrite
    return _convert(given.source, given.destination, given.to, options, given.json)


def _compare(first: str, second: str, options: dict[str, Any], as_json: bool) -> int:
    from vit.checkpoints.convert import compare

    result = compare(first, second, **options)
    if as_json:
        print(json.dumps(asdict(result) | {"relative": result.relative}))
        return 0
    size = "x".join(map(str, result.image_size))
    print(
        f"largest difference {result.largest_difference:.3g}, relative {result.relative:.3g} "
        f"(2 random images of {size} pixels, float64)"
    )
    return 0


def _convert(source: str, destination: str, to: Any, options: dict[str, Any], as_json: bool) -> int:
    from vit.checkpoints.convert import convert
    from vit.checkpoints.report import print_report

    try:
        done = convert(source, destination, to, **options)
    except OSError as error:
        where = error.filename or destination
        raise UserError(f"cannot convert to {destination}: {error.strerror}: {where}") from error
    if as_json:
        print(json.dumps(asdict(done)))
        return 0
    print_report(done.loaded)
    for text in done.notes:
        note(text)
    print("\n".join(done.written))
    return 0
