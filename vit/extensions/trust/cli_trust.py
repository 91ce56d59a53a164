"""`vit trust`: the score that tells images of unknown classes, chosen for a finished run."""

import json
from pathlib import Path
from typing import Any

from vit.cli.arguments import OneLineParser
from vit.console import show

DESCRIPTION = """\
Chooses the score by which `vit classify --unknown` detects images of none of the classes: the
energy of the logits (a run's default), or a distance to the features of training images. Groups of
classes are left out in turn; the score that detects them best is written to model/ of the run."""


def run(args: list[str]) -> int:
    """Prints the score, and which share of held-out images is answered at which accuracy."""
    parser = OneLineParser(prog="vit trust", description=DESCRIPTION)
    parser.add_argument("run", metavar="RUN", help="a finished run")
    text = "other images of the classes, with train/ and val/ (default: the run's data)"
    parser.add_argument("--data", metavar="D", help=text)
    parser.add_argument("--json", action="store_true", help="print one object")
    options = parser.parse_args(args)

    from vit.extensions.trust.choosing import choose_score  # heavy: imports lightning
    from vit.runs.short_names import Words

    data = [] if options.data is None else Words(["--data", options.data]).written
    chosen = choose_score(Path(options.run).expanduser(), data)
    if options.json:
        print(json.dumps(chosen, indent=2))
    else:
        _show(chosen)
    return 0


def _show(chosen: dict[str, Any]) -> None:
    from vit.extensions.reports.results import SHOWN_SHARES

    why = "as no classes could be left out"
    if chosen["groups"]:
        why = f"the best with {chosen['groups']} groups of classes left out in turn"
    show(f"score of unknown images: {chosen['score']}, {why}")
    for score, area in chosen["areas"].items():
        show(f"  {score:12} {area:.4f} mean area under the risk-coverage curve")
    if chosen["score"] != "mahalanobis":
        show("an image that is unusual by mahalanobis is unknown, too")
    compared = f"compared with {chosen['train_images']:,} training images"
    others = f"{chosen['images']:,} other {chosen['measured_on']}"
    if chosen["accuracies"] is None:
        show(f"{compared}, by {others}, to which the head was fitted: they tell no accuracy")
    else:
        show(f"{compared}; of {others}, the most alike first:")
        show("  answered, %   accuracy, %")
        for share in SHOWN_SHARES:
            show(f"{share:13} {100 * chosen['accuracies'][share - 1]:13.1f}")
    show(f"wrote {chosen['file']}")
