"""`vit convert`: converts weights between formats, or compares two files."""

import argparse
import json
from dataclasses import asdict, fields
from typing import Any

from vit.cli.arguments import OneLineParser
from vit.console import note
from vit.errors import UserError, did_you_mean
from vit.tables import lines, rows
from vit.weights.report import LoadReport

EPILOG = """\
examples:
  vit convert B_16.npz my_model --to native           Google's file to a model directory of ours
  vit convert runs/pets my_model --to huggingface     a run for transformers
  vit convert B_16.npz my_model --compare             largest difference of the logits

native, timm and huggingface write a directory, torchvision a .pth file, google a .npz file."""

_READ_ALONE = ("open_clip",)  # a test compares this with the classes, whose import takes seconds


def run(args: list[str]) -> int:
    """Converts or compares."""
    text = "Converts weights between formats, or compares two files."
    parser = OneLineParser(prog="vit convert", description=text, epilog=EPILOG)
    add = parser.add_argument
    add("source", help="weights: a run, a directory, a file, or a hub address")
    add("destination", help="where to write, or the second model to compare")
    action = parser.add_mutually_exclusive_group(required=True)
    choices = [name for name in rows("formats") if name not in _READ_ALONE]
    action.add_argument("--to", choices=choices, help="the library to write for")
    action.add_argument("--compare", action="store_true", help="print the difference of the logits")
    text = "set a field of the configuration that the file does not record, such as "
    text += "activation=gelu_tanh; may be repeated"
    add("--set", action="append", default=[], metavar="FIELD=VALUE", help=text)
    heads = "num_heads={}".format
    add("--num-heads", action="append", dest="set", type=heads, help="same as --set num_heads=SET")
    text = "pixels to resize the positions to, or to compare at"
    add("--image-size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help=text)
    text = "keep the run's temperature (default; other libraries: in the head's weights), or drop "
    text += "it; --compare divides the logits by the temperatures of both models"
    add("--temperature", choices=("keep", "none"), default="keep", help=text)
    kinds = "if the file has both: the raw weights, or their average (default)"
    add("--weights", choices=("raw", "average"), help=kinds)
    for name, text in lines("texts").items():
        add(f"--{name}", metavar="X", help=text)
    add("--overwrite", action="store_true", help="replace the model in the destination")
    add("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(args)
    options = _fields(arguments.set) | {
        "raw": arguments.temperature == "none",
        "weights": arguments.weights,
        **{name: text for name in rows("texts") if (text := vars(arguments)[name]) is not None},
    }
    if arguments.image_size:
        options["image_size"] = tuple(arguments.image_size)
    from vit.weights.formats import MissingFact

    try:
        return _compare(arguments, options) if arguments.compare else _convert(arguments, options)
    except MissingFact as fact:
        raise UserError(f"{fact}, by --set or --image-size") from fact


def _fields(assignments: list[str]) -> dict[str, Any]:
    """Values of the fields by name: parsed as JSON, else text."""
    from dataclasses import fields

    from vit.models.config import ResNetConfig, ViTConfig

    known = {field.name for kind in (ViTConfig, ResNetConfig) for field in fields(kind)}
    values: dict[str, object] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not text:
            raise UserError(f"--set {assignment} is not FIELD=VALUE, such as --set num_heads=12")
        if name not in known:
            raise UserError(f"--set {assignment}: no such field{did_you_mean(name, sorted(known))}")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def _compare(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    from vit.extensions.formats.convert import compare

    result = compare(arguments.source, arguments.destination, **options)
    if arguments.json:
        print(json.dumps(asdict(result) | {"relative": result.relative}))
        return 0
    size = "x".join(map(str, result.image_size))
    print(
        f"largest difference {result.largest_difference:.3g}, relative {result.relative:.3g} "
        f"(2 random images of {size} pixels, float64)"
    )
    return 0


def _convert(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    from vit.extensions.formats.convert import convert
    from vit.weights.report import print_report

    place = arguments.destination
    try:
        done = convert(
            arguments.source, place, arguments.to, overwrite=arguments.overwrite, **options
        )
    except OSError as error:
        where = error.filename or place
        raise UserError(f"cannot convert to {place}: {error.strerror}: {where}") from error
    if arguments.json:
        loaded = {field.name: getattr(done.loaded, field.name) for field in fields(LoadReport)}
        print(json.dumps({"loaded": loaded, "written": done.written, "notes": done.notes}))
        return 0
    print_report(done.loaded)
    for text in done.notes:
        note(text)
    print("\n".join(done.written))
    return 0
