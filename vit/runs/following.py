"""Options that follow from the weights: size and normalisation; and on the images of the run that
they come from, how these are read and cut."""

import json
import os
import shlex
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from vit.console import note
from vit.data.module import ImageData
from vit.data.settings import Columns, InputFormat
from vit.data.trained_on import Known, digests
from vit.errors import UserError
from vit.inference.lineage import note_seen
from vit.recipes import DEFAULT_RECIPE, find_recipe
from vit.runs.records import CONFIG, is_run
from vit.runs.short_names import Words
from vit.training.network_training import RECOMPUTE
from vit.weights.pretrained import inspect_pretrained
from vit.yaml_reader import flat, read_options

if TYPE_CHECKING:  # it imports this module
    from vit.runs.options import Options

FOLLOWED = ("splits.seed", "splits.test_fraction", "labels", "label_separator", "channels")
FOLLOWED += tuple(f"columns.{field.name}" for field in fields(Columns))
"""Options in `data`; config.yaml may be somebody else's, and only plain values are taken."""
PLAIN = str | int | float | None
TEACHER = "loss.teacher.init_args.weights"
"""Option in `model` that names a teacher."""
READING = ("splits.", "labels", "label_separator", "columns.", "channels", "loading.on_error")
"""Beginnings of the names of options in `data` without which the images are others."""
ELSEWHERE = ("root", "dataset", "seed", "image_size", "inputs.", "pseudo")
"""Options that a command has already, that follow from the weights, or that are of one run."""


def followed(words: Words) -> tuple[Path | None, dict[str, Any]]:
    """The run that the weights come from, and options of its data that this one has too unless its
    recipes or words say otherwise: if the images are the same, and it is not a run that goes on."""
    values = words.values
    weights = values.get("model.pretrained")
    if weights is None or (words.run is not None and not words.recipes):
        return None, {}
    place = Path(str(weights)).expanduser()  # a run, something in it, or a link to that
    folders = [folder for at in (place, place.resolve()) for folder in (at, *at.parents[:2])]
    if (run := next(filter(is_run, folders), None)) is None:
        return None, {}
    recorded = read_options(run / CONFIG)
    seed, data = recorded.get("seed_everything"), recorded.get("data")
    options = {n: v for n, v in flat(data) if isinstance(v, PLAIN)} if data else {}
    root = str(options["root"]) if options.get("root") else None
    here, dataset = values.get("data.root"), values.get("data.dataset")
    same = same_place(root, here if here is None else str(here))
    if here is None and dataset is not None:
        same = root is None and options.get("dataset") == dataset
    if not same:
        return None, {}
    if options.get("splits.seed") is None and str(seed) != str(values.get("seed_everything", 0)):
        options["splits.seed"] = seed
    names = [name for name in FOLLOWED if name in options and f"data.{name}" not in values]
    return run, {name: options[name] for name in names}


def _text(value: object) -> str:
    """A value as it is typed."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def fill_from_weights(config: Namespace, built: Namespace) -> None:
    """Takes image size and normalisation from the weights unless the user has set them, in the
    options and in the arguments of ImageData that are built of them."""
    facts = {k: v for k, v in (config.model.architecture or {}).items() if k != RECOMPUTE}
    facts["weights"] = config.model.get("weights")
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
            group[name] = tuple(value) if isinstance(value, list) else value
    built.data.channels, built.data.image_size = data.channels, data.image_size
    built.data.inputs = replace(built.data.inputs, **vars(data.inputs))


def carried(options: "Options") -> str:
    """Typed options with which a run by the default recipe reads and cuts the images as this one:
    those of the data that were not its recipe's, or are not the default recipe's."""
    usual = dict(flat(options.parser.get_defaults().data.as_dict()))
    of_recipes = [group for r in options.recipes if isinstance(group := r.get("data"), dict)]
    by_default = read_options(find_recipe(DEFAULT_RECIPE)).get("data", {})
    here = usual | {n: v for group in of_recipes for n, v in flat(group)}
    there = usual | dict(flat(by_default))
    words = [f"--seed {seed}"] if (seed := options.config.seed_everything) else []
    for name, value in flat(options.recorded()["data"]):  # a function is a name there
        text, as_there = _text(value), _text(there.get(name))
        same = text == _text(here.get(name)) and (not name.startswith(READING) or text == as_there)
        if not same and not name.startswith(ELSEWHERE):
            words.append(f"--data.{name} {shlex.quote(text)}")
    return "".join(f" {word}" for word in words)


def same_place(recorded: str | None, given: str | None) -> bool:
    """Whether two folders or files are one; not if one of them is None."""
    places = [place and os.path.realpath(os.path.expanduser(place)) for place in (recorded, given)]
    return places[0] is not None and places[0] == places[1]


def check_held_out(config: Namespace, data: ImageData) -> None:
    """Says how many of val and test the weights or a teacher have learned, or the run will.

    UserError where the weights have, unless that is allowed.
    """
    if data.known is not None and (seen := data.known.given(data.splits)):
        if config.data.splits.seen == "refuse":
            raise UserError(f"{'; '.join(seen)}; give others, or --data.splits.seen allow")
        note("; ".join(seen))
    teacher = config.model.get(TEACHER)
    if teacher is None and data.mixture is None:
        return
    for name, images in data.splits.present().items():
        if name == "train":
            continue
        if teacher is not None:
            note_seen(teacher, images, name)
        if data.mixture and (also := digests([data.mixture.unlabelled])) is not None:
            if text := Known(also, "this run, without labels").count(images, name):
                note(text)
