"""Options that follow from the weights: size and normalisation; and on the images of the run that
they come from, how these are read and cut."""

import os
from dataclasses import fields, replace
from pathlib import Path

from jsonargparse import Namespace

from vit.console import note
from vit.data.module import ImageData
from vit.data.settings import Columns, InputFormat
from vit.errors import UserError
from vit.recipes import flat
from vit.runs.lineage import known_by
from vit.runs.records import Record, is_run, recorded_options
from vit.runs.short_names import Words
from vit.training.network_training import RECOMPUTE
from vit.weights.pretrained import inspect_pretrained

FOLLOWED = (
    *("splits.seed", "splits.test_fraction", "labels", "label_separator", "channels"),
    *("loading.on_error", *(f"columns.{field.name}" for field in fields(Columns))),
)
"""Options in `data`; config.yaml may be somebody else's, and only plain values are taken."""
PLAIN = str | int | float | None
TEACHER = "loss.teacher.init_args.weights"
"""Option in `model` that names a teacher."""


def followed(words: Words) -> tuple[Path | None, Record]:
    """The run that the weights come from, and options of its data that this one has too unless its
    recipes or words say otherwise: if the images are the same, and it is not a resumed run."""
    values = words.values
    weights = values.get("model.pretrained")
    if weights is None or (words.run is not None and not words.recipes):
        return None, {}
    place = Path(str(weights)).expanduser()  # a run, something in it, or a link to that
    folders = [folder for at in (place, place.resolve()) for folder in (at, *at.parents[:2])]
    if (run := next(filter(is_run, folders), None)) is None:
        return None, {}
    recorded = recorded_options(run)
    seed, data = recorded.get("seed_everything"), recorded.get("data")
    options = {n: v for n, v in flat(data) if isinstance(v, PLAIN)} if data else {}
    root = str(options["root"]) if options.get("root") else None
    ours, dataset = values.get("data.root"), values.get("data.dataset")
    same = same_place(root, ours if ours is None else str(ours))
    if ours is None and dataset is not None:
        same = root is None and options.get("dataset") == dataset
    if not same:
        return None, {}
    if options.get("splits.seed") is None and str(seed) != str(values.get("seed_everything", 0)):
        options["splits.seed"] = seed
    names = [name for name in FOLLOWED if name in options and f"data.{name}" not in values]
    return run, {name: options[name] for name in names}


def fill_from_weights(config: Namespace, built: Namespace) -> None:
    """Takes image size and normalisation from the weights unless the user has set them, in the
    options and in the arguments of ImageData that are built of them."""
    facts: Record = {**(config.model.architecture or {}), "weights": config.model.get("weights")}
    facts.pop(RECOMPUTE, None)
    info = inspect_pretrained(config.model.pretrained, **facts)
    preprocess, data = info.preprocess or {}, config.data
    if data.channels is None:
        data.channels = preprocess.get("channels")
        if data.channels is None and info.config.in_channels != 3:
            data.channels = info.config.in_channels
    elif len(preprocess.get("mean", ())) != data.channels:
        preprocess = {k: v for k, v in preprocess.items() if k not in ("mean", "std")}
    if data.inputs.resize == "pad":  # which decides the fraction
        preprocess = {k: v for k, v in preprocess.items() if k != "crop_fraction"}
    inputs = [field.name for field in fields(InputFormat)]
    for name in {"image_size", *inputs} & preprocess.keys():
        group, value = data.inputs if name in inputs else data, preprocess[name]
        if group[name] is None:
            group[name] = tuple(value) if isinstance(value, list) else value  # pyright: ignore
    built.data.channels, built.data.image_size = data.channels, data.image_size
    built.data.inputs = replace(built.data.inputs, **vars(data.inputs))


def same_place(one: str | None, other: str | None) -> bool:
    """True if two paths lead to one folder or file; false if one of them is None."""
    places = [place and os.path.realpath(os.path.expanduser(place)) for place in (one, other)]
    return places[0] is not None and places[0] == places[1]


def check_held_out(config: Namespace, data: ImageData) -> None:
    """Notes how many images of val and test the weights or a teacher have learned.

    UserError where the weights have, unless that is allowed.
    """
    for known in (data.known, known_by(config.model.get(TEACHER))):
        if known is not None and (seen := known.held_out(data.splits)):
            if known is data.known and config.data.splits.seen == "refuse":
                raise UserError(f"{'; '.join(seen)}; give others, or --data.splits.seen allow")
            note("; ".join(seen))
