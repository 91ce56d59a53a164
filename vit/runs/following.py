"""Splits follow the weights: on the images of the run that weights come from, its options say how
these are read and cut."""

import json
import os
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from vit.console import note
from vit.data.module import ImageData
from vit.data.trained_on import Known, digests
from vit.inference.lineage import note_seen
from vit.runs.files import CONFIG, is_run
from vit.runs.mistakes import differences, flat
from vit.yaml_reader import read_options

FOLLOWED = ("data.splits.seed", "data.splits.test_fraction", "data.labels", "data.label_separator")
FOLLOWED += ("data.columns.", "data.channels")
"""Beginnings of the names of these options."""


def parsed(parser: LightningArgumentParser, recipes: list[str], typed: list[str]) -> Namespace:
    """The values of arguments; what is not typed is as in the run that the weights come from, if
    the images are the same. A note names what that changes."""
    config = parser.parse_args([*recipes, *typed])
    place = Path(config.model.pretrained or "").expanduser()  # a run, or something in it
    run = next((folder for folder in (place, *list(place.parents)[:2]) if is_run(folder)), None)
    if config.model.pretrained is None or run is None:
        return config
    after = parser.parse_args([*recipes, *_followed(run, config), *typed])
    if taken := differences(config.data.as_dict(), after.data.as_dict()):
        values = ", ".join(f"data.{name} {value}" for name, (_, value) in taken.items())
        note(f"as in {run}, whose images these are: {values}")
    return after


def _followed(run: Path, config: Namespace) -> list[str]:
    """Arguments for the options of a run, if its images are those of `config`."""
    options = dict(flat(read_options(run / CONFIG)))
    named = config.data.root is None and config.data.dataset is not None
    if named:
        same = (options.get("data.root"), options.get("data.dataset")) == (
            None,
            config.data.dataset,
        )
    else:
        same = same_place(options.get("data.root"), config.data.root)
    if options.get("data.splits.seed") is None:
        options["data.splits.seed"] = options.get("seed_everything")
    if options["data.splits.seed"] == config.seed_everything:
        del options["data.splits.seed"]
    chosen = {n: v for n, v in options.items() if same and n.startswith(FOLLOWED)}
    texts = {n: v if isinstance(v, str) else json.dumps(v) for n, v in chosen.items()}
    return [f"--{name}={text}" for name, text in texts.items()]


def same_place(recorded: str | None, given: str | None) -> bool:
    """Whether two folders or files are one; not if one of them is None."""
    places = [place and os.path.realpath(os.path.expanduser(place)) for place in (recorded, given)]
    return places[0] is not None and places[0] == places[1]


def note_other_sources(config: Namespace, data: ImageData) -> None:
    """Says how many held-out images a teacher has learned, or are unlabelled images of the run."""
    for name in ("val", "test"):
        images = data.splits.present().get(name)
        if (teacher := config.model.get("loss.distillation.teacher")) is not None:
            note_seen(teacher, images, name)
        if data.mixture and images is not None:
            same = Known(digests([data.mixture.unlabelled]) or {}, "this run, without labels")
            if text := same.count(images, name):
                note(text)
