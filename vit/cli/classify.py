"""`vit classify`: names for pictures."""

import json
import sys

from vit.cli.arguments import pictures
from vit.cli.messages import OneLineParser
from vit.errors import UserError

BATCH = 32


def run(args: list[str]) -> int:
    """Prints the most probable classes of every picture."""
    parser = OneLineParser(
        prog="vit classify", description="Names what is on pictures, with a trained model."
    )
    parser.add_argument("model", help="a run, a directory or file of weights, a name or an address")
    parser.add_argument("images", nargs="+", help="pictures, or folders of them")
    parser.add_argument("--top", type=int, default=5, help="how many classes (default 5)")
    parser.add_argument("--device", default=None, help="such as cpu or cuda; default: the best")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument(
        "--on_error", choices=("error", "skip"), default="error", help="for unreadable pictures"
    )
    options = parser.parse_args(args)
    if options.top < 1:
        raise UserError(f"--top {options.top} must be at least 1")
    paths = list(pictures(options.images))

    import torch

    from vit.data.decode import ImageError, open_image
    from vit.inference.classifier import load
    from vit.kernels.packing import pack

    classifier = load(options.model)
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        classifier.to(device)
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that it has none
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {device} cannot be used: {reason}") from error
    if len(paths) > BATCH:
        pack(classifier.model)
    rows, skipped = [], 0
    for start in range(0, len(paths), BATCH):
        opened = []
        for path in paths[start : start + BATCH]:
            try:
                opened.append((path, open_image(path)))
            except ImageError as error:
                if options.on_error == "error":
                    raise
                skipped += 1
                print(f"skipped: {error}", file=sys.stderr)
        if not opened:
            continue
        predictions = classifier.predict([image for _, image in opened], options.top)
        for (path, _), prediction in zip(opened, predictions, strict=True):
            pairs = list(zip(prediction.classes, prediction.probabilities, strict=True))
            rows.append(
                {"image": str(path), "top": [{"class": c, "probability": p} for c, p in pairs]}
            )
            if not options.json:
                print(f"{path}")
                for name, probability in pairs:
                    print(f"  {probability:6.1%}  {name}")
    if options.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    if skipped:
        print(f"{skipped} of {len(paths)} pictures were skipped", file=sys.stderr)
    return 0
