"""The finisher `report`: the pictures and the page of a run with labels."""

from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from vit.console import note
from vit.data.photo import Photo
from vit.errors import UserError
from vit.extensions.reports.first_batch import draw_first_batch
from vit.extensions.reports.results import THUMBNAIL, Glance, write_results
from vit.runs import first_batch
from vit.runs.evaluate import Subject
from vit.runs.predictions import FILE, Predictions
from vit.runs.records import read_summary, recorded_options
from vit.tables import resolve, rows


class Scored(Subject):
    """A run and the images that it has scored, of which nothing needs to be said."""

    def note_images(self, other: bool) -> None: ...


def finish(run: Path) -> None:
    """Draws first_batch.png, and the final score of a run that has one."""
    summary, first = read_summary(run), []
    if (run / first_batch.FILE).is_file():
        first = draw_first_batch(run, _arrays(run / first_batch.FILE), summary["classes"])
    if (run / FILE).is_file():
        _draw_score(run, _arrays(run / FILE), summary, first)


def _draw_score(
    run: Path,
    values: dict[str, Any],
    summary: dict[str, Any],
    first: list[tuple[Image.Image, str]],
) -> None:
    split, thresholds = str(values.pop("split")), values.pop("thresholds", None)
    open_image, look = _nothing, None
    values |= {"names": values["names"].tolist()}
    values |= {"sets": (summary.get("confidence") or {"sets": []})["sets"]}
    subject = subject_of(run, split)
    if subject is not None:
        open_image = partial(_small, subject)
        network: Any = subject.build_model().model
        glances: list[Glance] = [*map(resolve, rows("glances").values())]
        looks = (glance(network, subject.data.preprocess) for glance in glances)
        look = next((each for each in looks if each is not None), None)
    write_results(
        run,
        split=split,
        classes=summary["classes"],
        predictions=Predictions(**values),
        thresholds=thresholds,
        open_image=open_image,
        look=look,
        first=first,
    )


def _small(subject: Subject, index: int) -> Image.Image:
    """An image of the split, its shorter side of at most THUMBNAIL pixels where it is RGB."""
    data = subject.data
    if data.preprocess.channels is not None:
        return data.open_image(subject.split, index)
    photo = Photo(data.image_set(subject.split).items[index])
    side = min(photo.height, photo.width, THUMBNAIL)
    return photo.cover((side, side), "bilinear")


def _arrays(file: Path) -> dict[str, Any]:
    """UserError for a damaged file."""
    try:
        with np.load(file) as content:
            return dict(content)
    except (OSError, EOFError, ValueError, BadZipFile) as error:
        raise UserError(f"{file} is damaged; copy the run again") from error


def subject_of(run: Path, split: Any) -> Subject | None:
    """The run and its images; None where they were objects of Python, and, with a note, where they
    are no longer those that the run has scored."""
    if "images" in (recorded_options(run).get("own") or ()):
        return None
    why = "they have changed"
    try:
        subject = Scored(run, split, [])
        if subject.data.digests[split] == read_summary(run)["splits"][split]:
            return subject
    except UserError as error:
        why = str(error)
    note(f"the report shows no images of {split}: {why}")
    return None


def _nothing(index: int) -> Image.Image:
    raise FileNotFoundError(index)
