"""Options of the commands on frozen features, and opening the model and data that they name."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vit.cli.arguments import OneLineParser, add_engine, asked_device, chosen_device
from vit.console import note
from vit.errors import UserError
from vit.extensions.serving.cli_weights import weights_of
from vit.writing import writable

if TYPE_CHECKING:
    from vit.extensions.evaluation.features import Layer
    from vit.extensions.evaluation.frozen import Bench, Frozen


def add_model_arguments(parser: OneLineParser, name: str = "model", *, cached: bool = True) -> None:
    """Adds MODEL and the options for images, computation and, where features are `cached`, that.

    `name` is --model where it is an option; unreadable images are then the command's matter.
    """
    parser.add_argument(
        name, help="a run, a model directory, a weights file, a hub address or an exported file"
    )
    add = parser.add_argument_group("images (default: as the model was trained)").add_argument
    add("--image-size", type=int, nargs="+", metavar="N", help="pixels: one side, or height width")
    add("--resize", choices=("crop", "squash", "pad"), help="cut to the shape, stretch or pad")
    add("--crop-fraction", type=float, metavar="X", help="side of the crop over the resized side")
    add("--batch-size", type=int, default=64, metavar="N", help="default: 64")
    add("--num-workers", type=int, metavar="N", help="number of processes that read images")
    if name == "model":
        choices = ("error", "skip")
        text = "for unreadable images (default: error)"
        add("--on-error", choices=choices, default="error", help=text)
    add = parser.add_argument_group("computation").add_argument
    add("--device", help="such as cpu or cuda (default: a GPU if there is one)")
    add_engine(add)
    precisions = ("float32", "float64", "bfloat16")
    add("--precision", choices=precisions, default="float32", help="default: float32")
    parser.set_defaults(cache=None, no_cache=not cached)
    if cached:
        add("--cache", metavar="DIR", help="where features are kept (default: in the cache folder)")
        add("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def bench_parser(command: str, description: str, *, cached: bool = True) -> OneLineParser:
    """Parser of `vit COMMAND MODEL --data X`."""
    parser = OneLineParser(
        prog=f"vit {command}",
        usage=f"vit {command} MODEL --data X [OPTIONS]",
        description=description,
    )
    add_model_arguments(parser, cached=cached)
    parser.add_argument(
        "--data",
        required=True,
        metavar="X",
        help="a data set by name, or a folder, CSV or Parquet file",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder for downloads")
    if cached:  # features, to which a head is fitted
        parser.add_argument("--group", metavar="NAME", help="see vit fit --data.columns.group")
    return parser


def data_sets(text: str) -> dict[str, str | None]:
    """Name -> folder or manifest, or None for a set of the catalog.

    'cifar10,my_photos/,pets=/data/pets' has the names cifar10, my_photos and pets.
    """
    from vit.data.catalog import data_set  # heavy: imports numpy

    sources: dict[str, str | None] = {}
    for item in filter(None, map(str.strip, re.split(r",(?![^{]*\})", text))):  # not in braces
        name, root = data_set(item)
        if name in sources:
            raise UserError(f"--data has {name!r} twice; name one of them, as in other={name}")
        sources[name] = root
    if not sources:
        raise UserError("--data is empty; give names or folders, as in --data cifar10,my_photos/")
    return sources


def one_data_set(text: str) -> tuple[str, str | None]:
    """The name, and the folder or file; None for a set of the catalog."""
    [(name, root), *more] = data_sets(text).items()
    if more:
        raise UserError(f"--data {text}: give one data set")
    return name, root


def usual(numbers: tuple[int, ...], most: int, reason: str) -> list[int]:
    """The usual numbers up to `most`, at least 1; a note names those left out."""
    fitting = [number for number in numbers if number <= most]
    if len(fitting) < len(numbers):
        left_out = ", ".join(str(number) for number in numbers if number > most)
        note(f"{reason} {left_out}")
    return fitting or [1]


def load_frozen(options: Namespace, layer: "Layer") -> "Frozen":
    """MODEL with its weights, and its preprocessing changed by the options."""
    from vit.extensions.evaluation.frozen import Frozen, Reading
    from vit.writing import cache_directory

    reading = Reading(
        image_size=_image_size(options.image_size),
        resize=options.resize,
        crop_fraction=options.crop_fraction,
        batch_size=options.batch_size,
        num_workers=options.num_workers,
        on_error=options.on_error,
    )
    cache = None if options.no_cache else cache_directory() / "features"
    if options.cache is not None and not options.no_cache:
        cache = writable(Path(options.cache).expanduser(), "--cache")
    with chosen_device(asked_device(options)) as device:
        return Frozen.load(
            weights_of(options.model),
            layer,
            reading,
            engine=options.engine,
            precision=options.precision,
            device=device,
            cache=cache,
        )


def _image_size(sides: Sequence[int] | None) -> tuple[int, int] | None:
    if sides is None:
        return None
    if len(sides) > 2 or min(sides) < 1:
        shown = " ".join(map(str, sides))
        raise UserError(f"--image-size {shown}: give one side in pixels, or height and width")
    return sides[0], sides[-1]


def open_bench(options: Namespace, layer: "Layer") -> "Bench":
    """The model and the images of --data."""
    from vit.data.settings import Columns
    from vit.extensions.evaluation.frozen import Bench
    from vit.runs.lineage import note_seen

    name, root = one_data_set(options.data)
    where = {"dataset": name} if root is None else {"root": root}
    frozen = load_frozen(options, layer)
    columns = Columns(group=options.group)
    bench = Bench.open(frozen, name, data_dir=options.data_dir, columns=columns, **where)
    note_seen(options.model, bench.data.image_set(bench.split), bench.split)
    return bench
