"""`vit export`: a trained model as a file of another runtime."""

import json
import re
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import OneLineParser, number, pictures, pixels, whole_number
from vit.console import show
from vit.errors import UserError
from vit.extensions.serving.cli_weights import splits_of, weights_of
from vit.runs.records import is_run

if TYPE_CHECKING:
    from vit.extensions.serving.write import Exported

EPILOG = """\
examples:
  vit export runs/my_photos-finetune photos.onnx
  vit export runs/my_photos-finetune photos.xml --check my_photos/val
  vit export runs/my_photos-finetune photos.xml --int8 my_photos/train --check my_photos/test
  vit export runs/my_photos-finetune --at 20ms --sizes 192 160 --data my_photos/test
  vit export vit_s16.augreg_in21k_ft_in1k model.pt2

A file is kept only if its answers equal the model's: on the pictures of --check, on validation
images of a run whose data still exists, or on generated pictures. With --int8, --check is a folder
of class folders, on which at most --max-drop points of accuracy may be lost.

--at tries float32, bfloat16 and int8 for OpenVINO at the model's image size and at --sizes. It
keeps the file that answers one picture in this time (median of 50 on this machine) and loses fewer
than --max-drop points by the upper end of the 95 % interval: the one with the lowest such end."""


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="vit export",
        description="Writes a trained model for ONNX Runtime, OpenVINO or torch.export.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("model", help="a run, a directory or file of weights, a name, or an address")
    text = "the file to write: NAME.onnx, NAME.xml (OpenVINO) or NAME.pt2; default: model.onnx in"
    add("dst", metavar="DST", nargs="?", help=f"{text} the run")
    add("--format", choices=("onnx", "openvino", "pt2"), help="default: by the suffix, or onnx")
    add("--check", nargs="+", metavar="X", help="pictures, or folders of pictures, to compare on")
    add("--int8", metavar="FOLDER", help="compute in 8 bits, calibrated on these pictures")
    add("--at", type=duration, metavar="TIME", help="keep to a latency, such as 20ms, on this CPU")
    add("--sizes", nargs="+", type=pixels, metavar="N", help="more image sizes that --at tries")
    text = "--at's labelled pictures, a folder per class (default: val of the run)"
    add("--data", metavar="FOLDER", help=text)
    text = "points of accuracy that --int8 and --at may lose (default: 0.5)"
    add("--max-drop", type=number, metavar="X", help=text)
    add("--opset", type=whole_number, metavar="N", help="ONNX opset (default: torch's)")
    add("--overwrite", action="store_true", help="replace existing files")
    add("--json", action="store_true", help="print the comparison as JSON")
    return parser


def run(args: list[str]) -> int:
    """Writes the model, and prints how its answers compare with PyTorch's."""
    options = _parser().parse_args(args)
    _check(options)
    if options.dst is None:
        form = "openvino" if options.at is not None else options.format or "onnx"
        options.dst = _in_run(options.model, form)
    from vit.extensions.serving.source import files
    from vit.extensions.serving.write import Differs
    from vit.runs.lineage import note_seen

    if options.check is not None:
        note_seen(options.model, files(pictures(options.check, arrays=True)), "--check")
    names = ("dst", "format", "opset", "overwrite")
    write = _within if options.at is not None else _float32 if options.int8 is None else _int8
    try:
        write(options, {name: getattr(options, name) for name in names})
    except Differs as error:
        show(f"vit: {error}")
        return 1
    return 0


def duration(text: str) -> float:
    """Seconds of '20ms' or '0.02s'."""
    match = re.fullmatch(r"(\d+|\d*\.\d+)(ms|s)", text)
    if match is None or not float(match[1]):
        raise ArgumentTypeError(f"{text} is not a time above 0, such as 20ms or 0.02s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)


def _check(options: Namespace) -> None:
    """UserError for options that do not go together."""
    if options.at is not None:
        others = {"check": options.check, "opset": options.opset}
        if typed := [name for name, value in others.items() if value is not None]:
            raise UserError(f"--{typed[0]} does not go with --at, which has its pictures by --data")
        suffix = Path(options.dst or "model.xml").suffix
        if suffix.lower() != ".xml" or options.format not in (None, "openvino"):
            raise UserError("--at writes a file for OpenVINO: name it X.xml, without --format")
    elif options.sizes is not None or options.data is not None:
        raise UserError("--sizes and --data are for --at TIME")
    elif options.int8 is None and options.max_drop is not None:
        raise UserError("--max-drop is for --int8 and --at")
    elif options.int8 is not None and len(options.check or ()) != 1:
        raise UserError("--int8 needs --check with one folder, of class folders, for its accuracy")
    if options.dst is not None and re.fullmatch(r"\w+=\w+", options.dst):
        raise UserError(f"{options.dst} is not the name of a file, such as model.onnx")


def _within(options: Namespace, target: dict[str, Any]) -> None:
    """Prints also the candidates."""
    from vit.extensions.serving.cli_choice import choose

    choose(options, _show)


def _in_run(run: str, form: str) -> str:
    """The file of a format in a run. UserError for what is no run."""
    if not is_run(folder := Path(run).expanduser()):
        raise UserError(f"{run} is no run: name the file to write, such as model.onnx")
    return str(folder / f"model.{'xml' if form == 'openvino' else form}")


def _float32(options: Namespace, target: dict[str, Any]) -> None:
    from vit.extensions.serving.proof import PROOF_IMAGES
    from vit.extensions.serving.write import export

    images, origin, folder = None, "given pictures", Path(options.model).expanduser()
    if options.check is not None:
        images = list(pictures(options.check, arrays=True))
        origin = f"{len(images):,} pictures of {', '.join(options.check)}"
    elif is_run(folder):
        images = _held_out(folder, PROOF_IMAGES) or None
        origin = f"{len(images or ()):,} held-out images of the run"
    result = export(weights_of(options.model), check=images, origin=origin, **target)
    line = f"{result.detail}; {result.proof.line()}"
    _show(result, options.json, result.proof.to_dict(), line)


def _held_out(run: Path, count: int) -> list[Any]:
    """Images, at most `count`, drawn from val, or else from test; [] if the data is gone."""
    from vit.data.sampler import evaluated

    splits = splits_of(run)
    images = splits and (splits.val or splits.test)
    return [images.items[i] for i in evaluated(len(images), count, 0)] if images else []


def _int8(options: Namespace, target: dict[str, Any]) -> None:
    """Prints also the accuracy before and after."""
    from vit.extensions.reports.intervals import wilson_interval
    from vit.extensions.serving.quantize import MAX_DROP, export_int8

    [check] = options.check
    most = MAX_DROP if options.max_drop is None else options.max_drop
    model, folders = weights_of(options.model), {"calibration": options.int8, "check": check}
    result = export_int8(model, max_drop=most, **folders, **target)
    accuracy = result.accuracy
    about: dict[str, Any] = {
        "images": accuracy.count,
        "drop": accuracy.drop,
        "interval": accuracy.interval,
    }
    proofs = {"float32": result.proof, "int8": result.int8}
    lines = [f"{name:8} {proof.line()}" for name, proof in proofs.items()]
    lines.append(f"accuracy on {accuracy.count:,} images of {check}, 95 % intervals in brackets:")
    for name, right in (("float32", accuracy.before), ("int8", accuracy.after)):
        low, high = wilson_interval(right, accuracy.count)
        about[name] = {"accuracy": right / accuracy.count, "interval": [low, high]}
        about[name] |= {"comparison": proofs[name].to_dict()}
        lines.append(f"{name:8} {right / accuracy.count:.2%} ({low:.2%} to {high:.2%})")
    low, high = accuracy.interval
    lines.append(
        f"drop     {accuracy.drop:.2f} points ({low:.2f} to {high:.2f}): {accuracy.lost:,} images "
        f"lost, {accuracy.gained:,} gained"
    )
    about["in_calibration"] = result.in_calibration
    if count := result.in_calibration:
        lines.append(f"{count:,} of these images are of the calibration: others may lose more")
    about["sees_max_drop"] = accuracy.sees(most)
    if not accuracy.sees(most):
        lines.append(f"the folder is too small to see a drop of {most:g} points; give more images")
    _show(result, options.json, about, result.detail, *lines)


def _show(result: "Exported", as_json: bool, about: dict[str, object], *lines: str) -> None:
    """Prints what was written, for people or for programs."""
    files = [str(file) for file in result.files]
    if as_json:
        print(json.dumps({"files": files, **about, "detail": result.detail}, indent=2))
        return
    show("\n".join(lines))
    for file in result.files:
        size = file.stat().st_size
        show(f"{file}  {size / 1e6:,.1f} MB" if size >= 1e5 else f"{file}  {size / 1e3:,.1f} KB")
