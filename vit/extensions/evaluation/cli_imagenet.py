"""`vit imagenet`: evaluates a model with ImageNet's 1000 classes on val, ReaL, V2, A and R."""

import json
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vit.cli.arguments import OneLineParser
from vit.console import note, say
from vit.errors import UserError
from vit.extensions.evaluation.cli_frozen import add_model_arguments, load_frozen

if TYPE_CHECKING:
    import numpy as np

    from vit.data.module import ImageData
    from vit.extensions.evaluation.frozen import Frozen
    from vit.extensions.evaluation.imagenet_variants import Score

DESCRIPTION = """\
Evaluates a model with ImageNet's 1000 classes on ImageNet's test sets. ImageNet-A and -R have 200
of the classes, and only the logits of these count, as in their authors' code. Folders of val, A and
R are named by WordNet id. The model's class names give the order of its logits; without names it is
ImageNet's order."""


def run(args: list[str]) -> int:
    """Prints one row per test set."""
    parser = OneLineParser(
        prog="vit imagenet",
        description=DESCRIPTION,
        usage="vit imagenet MODEL [--val DIR] [--real FILE] [--v2 DIR] [--a DIR] [--r DIR] ...",
    )
    add_model_arguments(parser)
    add = parser.add_argument_group("sets (one or more)").add_argument
    add("--val", metavar="DIR", help="50,000 images in folders by WordNet id")
    add("--real", metavar="FILE", help="real.json: better labels for --val")
    add("--v2", metavar="DIR", help="ImageNet-V2: folders 0 to 999")
    add("--a", metavar="DIR", help="ImageNet-A: 200 folders by WordNet id")
    add("--r", metavar="DIR", help="ImageNet-R: 200 folders by WordNet id")
    add = parser.add_argument
    fitted = "fit a temperature on val and use it for the ECE of V2, A and R"
    add("--temperature", action="store_true", help=fitted)
    options = parser.parse_args(args)
    _check(options)
    about, scores = _scores(options)
    if options.json:
        print(json.dumps({**about, "rows": [asdict(score) for score in scores]}, indent=2))
        return 0
    print(f"{'set':5} {'images':>7} {'top-1, %':>9} {'top-5, %':>9} {'ECE, %':>7}")
    for score in scores:
        cells = [f"{score.name:5} {score.images:7,} {100 * score.acc1:9.2f}"]
        for value, width in ((score.acc5, 9), (score.ece, 7)):
            cells.append(f"{'-' if value is None else f'{100 * value:.2f}':>{width}}")
        print(" ".join(cells))
    if about["temperature"] is not None:
        print(f"temperature of val: {about['temperature']:.3f}, in the ECE of V2, A and R")
    return 0


def _check(options: Namespace) -> None:
    if all(folder is None for folder in (options.val, options.v2, options.a, options.r)):
        raise UserError(
            "nothing to evaluate: give --val (with --real if you like), --v2, --a or --r"
        )
    for name in ("real", "temperature"):
        if getattr(options, name) and options.val is None:
            raise UserError(f"--{name} needs --val, whose images it is for")


def _scores(options: Namespace) -> tuple[dict[str, Any], list["Score"]]:
    """Description of the measurement, and the rows of the table."""
    import torch

    from vit.confidence import fit_temperature
    from vit.extensions.evaluation import imagenet_variants as variants

    real = None if options.real is None else variants.read_real(options.real)
    frozen = load_frozen(options, "logits")
    count = frozen.num_classes
    if count != variants.NUM_CLASSES:
        raise UserError(
            f"{options.model} has {count:,} classes; these sets need ImageNet's "
            f"{variants.NUM_CLASSES}"
        )
    scores: list[Score] = []
    temperature = None
    for name, data, among, of_real in _sets(options, frozen, real):  # checks all folders first
        features = frozen.extractor(data, data.splits.scored)
        logits, labels = features.values, features.labels
        say(f"{name}: {len(labels):,} images")
        scale = temperature or 1.0
        scores.append(variants.score(name, logits, labels, among=among, temperature=scale))
        if of_real is not None:
            scores.append(variants.score_real(logits, [of_real[i] for i in features.indices]))
        if name == "val" and options.temperature:
            temperature = fit_temperature(torch.from_numpy(logits), torch.from_numpy(labels))
    return {"model": options.model, **frozen.about(), "temperature": temperature}, scores


def _sets(
    options: Namespace, frozen: "Frozen", real: list[list[int]] | None
) -> "list[tuple[str, ImageData, np.ndarray | None, list[list[int]] | None]]":
    """Name and images of each set; the places of its classes among the logits, if it has not all;
    the labels of ReaL for each image, if there are any."""
    from vit.extensions.evaluation import imagenet_variants as variants
    from vit.extensions.formats.class_names import imagenet_ids

    in_order, numbers = imagenet_ids(), variants.output_numbers(frozen.classes)
    ids = [in_order[number] for number in numbers]
    names = [str(number) for number in numbers]
    sets = []

    def images(name: str, folder: object, classes: list[str]) -> "ImageData":
        data = frozen.images(root=str(folder)).read_as(classes=classes)
        covered = len(set(data.image_set(data.splits.scored).labels.tolist()))
        if covered < variants.NUM_CLASSES and name in ("val", "V2"):
            note(f"{folder} has images of {covered} classes only")
        return data

    if options.val is not None:
        data = images("val", variants.class_folders(options.val)[0], ids)
        labels = None
        if real is not None:
            real_of_image = variants.real_labels(
                real, data.image_set(data.splits.scored).names, options.real
            )
            logit_of = {number: at for at, number in enumerate(numbers)}
            labels = [[logit_of[k] for k in several] for several in real_of_image]
        sets.append(("val", data, None, labels))
    if options.v2 is not None:
        sets.append(("V2", images("V2", options.v2, names), None, None))
    for name, folder in (("A", options.a), ("R", options.r)):
        if folder is not None:
            data = images(name, folder, ids)
            among = variants.shifted_classes(data.image_set(data.splits.scored).labels, folder)
            sets.append((name, data, among, None))
    return sets
