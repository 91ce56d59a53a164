"""`vit classify`: the most probable classes of images."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import OneLineParser, chosen_device, pictures
from vit.console import say
from vit.errors import UserError

if TYPE_CHECKING:
    from vit.inference.classifier import Classifier

BATCH = 32


def run(args: list[str]) -> int:
    """Prints the most probable classes of every image, and its labels if it may have several."""
    parser = OneLineParser(
        prog="vit classify", description="Classifies images with a trained model."
    )
    add = parser.add_argument
    add("model", help="a run, a directory or file of weights, a name or an address")
    add("images", nargs="+", help="pictures, or folders of them")
    add("--top", type=int, default=5, help="number of classes (default 5)")
    add("--device", help="such as cpu or cuda; default: the best")
    add("--json", action="store_true", help="print a list of objects")
    choices = ("error", "skip")
    add("--on_error", choices=choices, default="error", help="for unreadable pictures")
    options = parser.parse_args(args)
    if options.top < 1:
        raise UserError(f"--top {options.top} must be at least 1")
    paths = list(pictures(options.images, arrays=True))  # before the model is loaded

    from vit.inference.classifier import load

    classifier = load(options.model)
    with chosen_device(options.device) as device:
        classifier.to(device)
    arrays = any(path.suffix.lower() == ".npy" for path in paths)
    if arrays and classifier.preprocess.channels is None:
        paths = list(pictures(options.images))  # without .npy files
    rows: list[dict[str, Any]] = []
    try:
        for row in _answers(classifier, paths, options):
            rows.append(row)
            if not options.json:
                print(row["image"])
                if "labels" in row:
                    print(f"  labels: {', '.join(row['labels']) or 'none'}")
                for answer in row["top"]:
                    print(f"  {answer['probability']:6.1%}  {answer['class']}")
    finally:  # also if an unreadable image ends the command
        if options.json:
            print(json.dumps(rows, indent=2, ensure_ascii=False))
    if len(rows) < len(paths):
        say(f"{len(paths) - len(rows)} of {len(paths)} pictures were skipped")
    return 0


def _answers(
    classifier: "Classifier", paths: list[Path], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """The answer for every picture, in order; ImageError after those before an unreadable one."""
    from vit.data.decode import ImageError, open_input

    for start in range(0, len(paths), BATCH):
        opened, problem = [], None
        for path in paths[start : start + BATCH]:
            try:
                opened.append((path, open_input(path, classifier.preprocess.channels)))
            except ImageError as error:
                if options.on_error == "error":
                    problem = error
                    break
                say(f"skipped: {error}")
        if opened:
            predictions = classifier.predict([image for _, image in opened], options.top)
            for (path, _), prediction in zip(opened, predictions, strict=True):
                pairs = zip(prediction.classes, prediction.probabilities, strict=True)
                top = [{"class": name, "probability": probability} for name, probability in pairs]
                several = {} if prediction.labels is None else {"labels": prediction.labels}
                yield {"image": str(path), **several, "top": top}
        if problem is not None:
            raise problem
