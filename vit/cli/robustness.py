"""`vit robustness`: a model's errors on pictures with noise, blur, weather and digital damage."""

import json
from argparse import Namespace
from itertools import product
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import whole_number
from vit.cli.frozen import bench_parser, load_frozen, one_data_set
from vit.console import note
from vit.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vit.evaluation.robustness import Source

DESCRIPTION = """\
Top-1 errors on 15 kinds of corruption in 5 strengths (arXiv:1903.12261). The pictures are generated
from the images of --data, or read from ImageNet-C's folders or the files of CIFAR-10-C and -100-C:
only these official ones compare with papers."""
STRENGTHS = (1, 2, 3, 4, 5)


def run(args: list[str]) -> int:
    """Prints a row per kind."""
    parser = bench_parser("robustness", DESCRIPTION)
    add = parser.add_argument
    other = "whose errors on the same pictures are the unit (ImageNet-C: AlexNet's)"
    add("--relative-to", metavar="MODEL", help=other)
    add("--clean", metavar="X", help="with official pictures: the images that they were made of")
    add("--kinds", nargs="+", metavar="KIND", help="such as fog snow (default: all)")
    strengths = {"choices": STRENGTHS, "default": STRENGTHS, "metavar": "N"}
    add("--strengths", type=int, nargs="+", **strengths, help="from 1 to 5 (default: all)")
    add("--limit", type=whole_number, metavar="N", help="images, drawn (default: all)")
    add("--seed", type=int, default=0, metavar="N", help="of generated pictures (default 0)")
    options = parser.parse_args(args)
    options.no_cache, options.strengths = True, sorted({*options.strengths})
    document = _measured(options)
    print(json.dumps(document, indent=2) if options.json else _table(document))
    return 0


def _measured(options: Namespace) -> dict[str, Any]:
    """The table and its circumstances."""
    from vit.data.corruptions import table_for
    from vit.evaluation import robustness as scores
    from vit.runs.robustness import find_pictures

    frozen, name = load_frozen(options, "logits"), options.relative_to
    if frozen.preprocess.channels is not None:
        raise UserError(f"{options.model} takes other channels than RGB, which are not corrupted")
    clean = None if options.clean is None else one_data_set(options.clean)
    data = one_data_set(options.data)
    source = find_pictures(frozen, options.model, data, clean, options.data_dir)
    kinds = _kinds(options, source)
    versions = [*([None] if None in source.sets else []), *product(kinds, options.strengths)]
    models = [frozen]
    if name is not None:
        models.append(load_frozen(Namespace(**{**vars(options), "model": name}), "logits"))
    names = [scores.output_names(model, source.classes) for model in models]
    first = source.sets[versions[0]]()
    for classes in names:  # a class that one lacks is found before anything is computed
        scores.relabelled(first, source.classes, classes)
    found, images = [], 0
    for model, classes in zip(models, names, strict=True):
        limits = {"limit": options.limit, "seed": options.seed}
        errors, images = scores.top1_errors(model, source, classes, versions, **limits)
        found.append(errors)
    if source.name == "ImageNet-C" and name is None and len(options.strengths) == len(STRENGTHS):
        found.append(scores.ALEXNET)
        name = "AlexNet"
    about = {"model": options.model, **frozen.about(), "data": options.data, "images": images}
    about |= {"pictures": source.name, "relative_to": name}
    if source.name == "generated":
        table = table_for(frozen.preprocess.image_size)
        about |= {"numbers_for": table, "seed": options.seed}
    return {**about, **scores.summary(*found)}


def _kinds(options: Namespace, source: "Source") -> list[str]:
    """Those of --kinds, or else all that are there."""
    if options.kinds is None and len(source.kinds) < 15:
        note(f"{options.data} has {len(source.kinds)} of the 15 kinds")
    for kind in options.kinds or ():
        if kind not in source.kinds:
            hint = did_you_mean(kind, source.kinds) or f"; there are {', '.join(source.kinds)}"
            raise UserError(f"--kinds {kind}: {options.data} has no such pictures{hint}")
    return list(dict.fromkeys(options.kinds or source.kinds))


def _table(document: dict[str, Any]) -> str:
    """Errors in per cent, a row per kind."""
    rows, name = document["rows"], document["relative_to"]
    lines = [
        f"top-1 error in % on {document['pictures']} pictures: {document['data']}, "
        f"{document['images']:,} images"
    ]
    if "seed" in document:
        size = "{} x {}".format(*document["image_size"])
        numbers, seed = document["numbers_for"], document["seed"]
        lines.append(f"numbers for {numbers} pixels, the model sees {size}; seed {seed}")
    names = ["mean_error", *(["ce", "relative_ce"] if name else [])]
    head = [*rows[0]["errors"], "mean", *(["CE", "rel. CE"] if name else [])]
    lines.append(f"{'kind':17} " + " ".join(f"{word:>7}" for word in head))
    for row in rows:
        cells = [*row["errors"].values(), *(row[each] for each in names)]
        lines.append(f"{row['kind']:17} " + " ".join(map(_cell, cells)))
    lines.append(f"mean of {len(rows)} kinds{_cell(document['mean_error'])}")
    if document["clean_error"] is not None:
        lines.append(f"without corruption{_cell(document['clean_error'])}")
    if name:
        mce, relative = (_cell(document[each]).strip() for each in ("mce", "relative_mce"))
        lines.append(f"mCE {mce}, relative mCE {relative}: the errors of {name} are 100")
    return "\n".join(lines)


def _cell(share: float | None) -> str:
    return f"{'-' if share is None else f'{100 * share:.1f}':>7}"
