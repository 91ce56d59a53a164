"""`vit robustness`: a model's errors on pictures with noise, blur, weather and digital damage."""

import json
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from vit.cli.arguments import whole_number
from vit.errors import UserError
from vit.extensions.evaluation.cli_frozen import bench_parser, load_frozen, one_data_set

DESCRIPTION = """\
Measures top-1 errors on 15 corruptions in 5 strengths (arXiv:1903.12261). Pictures are generated
from the images of --data, or read from ImageNet-C's folders or the files of CIFAR-10-C and -100-C:
only these official files can be compared with papers."""


def run(args: list[str]) -> int:
    """Prints a row per kind."""
    parser = bench_parser("robustness", DESCRIPTION, cached=False)
    add = parser.add_argument
    other = "divide by this model's errors on the same pictures (ImageNet-C: by AlexNet's)"
    add("--relative-to", metavar="MODEL", help=other)
    add("--limit", type=whole_number, metavar="N", help="images, drawn at random (default: all)")
    add("--seed", type=int, metavar="N", help="seed of generated pictures (default: 0)")
    options = parser.parse_args(args)
    document = _measured(options)
    print(json.dumps(document, indent=2) if options.json else _table(document))
    return 0


def _measured(options: Namespace) -> dict[str, Any]:
    """The table and its circumstances."""
    from vit.extensions.evaluation.corruptions import table_for
    from vit.extensions.evaluation.imagenet_variants import is_wordnet
    from vit.extensions.evaluation.robustness import ALEXNET, Source, summary
    from vit.extensions.evaluation.robustness_pictures import find_pictures
    from vit.runs.lineage import note_seen

    models, other = [load_frozen(options, "logits")], options.relative_to
    preprocess = models[0].preprocess
    if preprocess.channels is not None:
        raise UserError(f"{options.model} takes other channels than RGB, which are not corrupted")
    place = one_data_set(options.data)
    pictures, sets = find_pictures(models[0], options.model, *place, options.data_dir)
    if options.seed is not None and pictures != "generated":
        raise UserError(f"--seed is for generated pictures, and {options.data} has official ones")
    if other is not None:
        models.append(load_frozen(Namespace(**{**vars(options), "model": other}), "logits"))
        if pictures == "generated":
            note_seen(other, sets[None][0].images, "tested")
    source = Source(pictures, sets, options.limit, options.seed or 0)
    for model in models:  # a class that one lacks is found before anything is computed
        source.read_by(model, next(iter(sets)), 1)
    (errors, images), *others = map(source.errors, models)
    reference = others[0][0] if others else None
    if (
        pictures == "ImageNet-C"
        and other is None
        and is_wordnet(next(iter(sets.values()))[0].classes)
    ):
        reference, other = ALEXNET, "AlexNet"
    about = {"model": options.model, **models[0].about(), "data": options.data, "images": images}
    about |= {"pictures": pictures, "relative_to": other}
    if pictures == "generated":
        about |= {"numbers_for": table_for(preprocess.image_size), "seed": source.seed}
    return {**about, **summary(errors, reference)}


def _table(document: dict[str, Any]) -> str:
    """Errors in per cent, a row per kind."""
    title = "top-1 error in % on {pictures} pictures: {data}, {images:,} images".format(**document)
    if "seed" in document:
        title += "; numbers for {numbers_for} pixels, seed {seed}".format(**document)
    more = ["ce"] if "mce" in document else []
    lines = [title, _line("kind", [*document["rows"][0]["errors"], "mean", *map(str.upper, more)])]
    for row in document["rows"]:
        values = [*row["errors"].values(), *(row[name] for name in ("mean_error", *more))]
        lines.append(_line(row["kind"], map(_percent, values)))
    lines.append(f"mean of {len(document['rows'])} kinds {_percent(document['mean_error'])}")
    if document["clean_error"] is not None:
        lines.append(f"without corruption {_percent(document['clean_error'])}")
    if more:
        unit = f"the errors of {document['relative_to']} are 100"
        lines.append(f"mCE {_percent(document['mce'])}: {unit}")
    return "\n".join(lines)


def _line(kind: str, cells: Iterable[object]) -> str:
    return f"{kind:17}" + "".join(f"{cell:>8}" for cell in cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"
