"""`vit inspect`: attention maps, rollout, Grad-CAM and filters as figures and a page."""

from argparse import Namespace
from pathlib import Path

from vit.cli.arguments import OneLineParser, chosen_device, pictures, pixels
from vit.console import note, say
from vit.errors import UserError
from vit.extensions.serving.cli_weights import weights_of
from vit.hardware import peak_memory
from vit.writing import writable

EPILOG = """\
examples:
  vit inspect dinov2_s14 photo.jpg                         figures and inspection.html
  vit inspect runs/my_photos-finetune photos/ --class cat  evidence for one class
  vit inspect vit_b16.augreg_in21k photo.jpg --image-size 192x256 --layers 0 5 11
  vit inspect MODEL                                        only filters and position embeddings"""


def run(args: list[str]) -> int:
    """Writes the figures and the page, and prints their paths."""
    options = _options(args)
    paths = list(map(Path, pictures(options.images, arrays=True)))
    out = writable(Path(options.out).expanduser(), "--out")

    from vit.extensions.inspection.subject import load_subject
    from vit.extensions.inspection.survey import survey

    subject = load_subject(weights_of(options.model), options.image_size)
    label = None if options.label is None else subject.class_index(options.label)
    if label is not None and not paths:
        raise UserError(f"--class {options.label} needs images")
    with chosen_device(options.device) as device:
        subject.model.to(device)
    result = survey(
        subject,
        Path(options.model).name or options.model,
        paths,
        out,
        layers=options.layers,
        heads=options.heads,
        label=label,
    )
    for text in result.notes:
        note(text)
    for path in result.written:
        print(path)
    peak = peak_memory(next(subject.model.parameters()).device)
    if peak is not None:
        say(f"peak memory: {peak / 1e6:,.0f} MB")
    return 0


def _options(args: list[str]) -> Namespace:
    parser = OneLineParser(
        prog="vit inspect",
        description="Writes attention maps, rollout, Grad-CAM and filters as figures and a page.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    add("model", help="a run, a directory or file of weights, a name, or an address")
    add("images", nargs="*", help="pictures, or folders of pictures")
    add("--out", default="inspection", metavar="DIR", help="default: inspection")
    add("--layers", type=int, nargs="+", metavar="N", help="layers, from 0 (default: four of them)")
    add("--heads", type=int, nargs="+", metavar="N", help="heads, from 0 (default: all)")
    add("--class", dest="label", metavar="NAME", help="name or index (default: the predicted one)")
    add("--image-size", type=pixels, metavar="N", help="pixels: 224, or 192x256 (height first)")
    add("--device", help="such as cpu or cuda (default: a GPU if there is one)")
    return parser.parse_args(args)
