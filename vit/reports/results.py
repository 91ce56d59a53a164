"""Output of an evaluation in the run directory: predictions.csv, figures and report.html.

Shapes: n images, k classes, t top classes per image. summary.json, metrics.csv and config.yaml are
read if they exist.
"""

import csv
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit.console import note
from vit.errors import UserError
from vit.reading import special
from vit.reports import curves, figures
from vit.reports.drawing import png
from vit.reports.figures import WrongImage
from vit.reports.report import Findings, render
from vit.reports.scores import (
    average_precision,
    class_scores,
    confusion_matrix,
)
from vit.writing import atomic, spreadsheet_text, write_bytes, write_text

NUM_WORST = 20
CSV_TOP = 5
THUMBNAIL = 320
"""Longer side of an image in the report, in pixels."""
MAX_CONFUSION = 2000
"""Maximum number of classes; larger k x k tables cost memory and are not readable."""
THRESHOLD = 0.5
"""Probability above which a class is predicted in multi-label data, where none was chosen."""

Look = Callable[[Image.Image, int], Image.Image | None]
"""Draws what a model looked at, given an RGB image and the class it said; None if it cannot."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Predictions of a model for a set of images.

    Raises ValueError if the lengths differ.
    """

    indices: np.ndarray
    """(n,) indices into the data set: arguments of `open_image`."""
    names: list[str]
    """n file names, or other names for display."""
    labels: np.ndarray
    """(n,) class indices, or (n, k) multi-hot labels."""
    top_classes: np.ndarray
    """(n, t) class indices, most probable first. In multi-label data, average precision, precision,
    recall and calibration need t = k."""
    top_probabilities: np.ndarray
    """(n, t), descending."""
    label_probabilities: np.ndarray
    """(n,) probability of the true class; multi-label: mean over the true classes."""

    def __post_init__(self) -> None:
        lengths = {field: len(getattr(self, field)) for field in self.__dataclass_fields__}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"one entry per image in each field, not {lengths}")

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def multilabel(self) -> bool:
        return self.labels.ndim == 2

    def in_order(self) -> "Predictions":
        """Sorted by data set order, independent of the processes."""
        if (np.diff(self.indices) >= 0).all():
            return self
        order = np.argsort(self.indices, kind="stable")
        arrays = {field: held[order] for field, held in vars(self).items() if field != "names"}
        return Predictions(names=[self.names[i] for i in order], **arrays)

    def classes_of(self, row: int) -> tuple[int, ...]:
        """The true class, or classes, of an image."""
        labels = self.labels[row]
        return tuple(map(int, np.flatnonzero(labels > 0) if self.multilabel else [labels]))

    def hits(self) -> np.ndarray:
        """(n,) whether the most probable class is a true one."""
        first = self.top_classes[:, 0]
        if self.multilabel:
            return self.labels[np.arange(len(self)), first] > 0
        return self.labels == first

    def scores(self) -> np.ndarray | None:
        """(n, k) probabilities in class order of multi-label data; None if t < k."""
        if self.top_classes.shape != self.labels.shape:
            return None
        scores = np.empty_like(self.top_probabilities)
        np.put_along_axis(scores, self.top_classes, self.top_probabilities, axis=1)
        return scores


def of_classes(thresholds: np.ndarray | None, num_classes: int) -> np.ndarray:
    """(k,) thresholds; THRESHOLD where there are none."""
    return np.full(num_classes, THRESHOLD) if thresholds is None else thresholds


def worst_predictions(
    predictions: Predictions, thresholds: np.ndarray | None = None
) -> list[tuple[int, int]]:
    """(row, column of top_classes) of every error, most confident first.

    Single label: the most probable class, if it is wrong. Multi-label: the most probable class that
    the image does not have, if its probability is above its threshold.
    """
    if predictions.multilabel:
        needed = of_classes(thresholds, predictions.labels.shape[1])[predictions.top_classes]
        held = np.take_along_axis(predictions.labels, predictions.top_classes, axis=1) > 0
        wrong = ~held & (predictions.top_probabilities > needed)
    else:
        wrong = (predictions.top_classes != predictions.labels[:, None]) & (
            np.arange(predictions.top_classes.shape[1]) == 0
        )
    column = wrong.argmax(axis=1)  # the first, so the most probable, wrong one
    rows = np.flatnonzero(wrong.any(axis=1))
    confidence = predictions.top_probabilities[rows, column[rows]]
    chosen = rows[np.argsort(-confidence, kind="stable")]
    return [(int(row), int(column[row])) for row in chosen]


def examine(
    run_dir: Path,
    split: str,
    classes: Sequence[str],
    predictions: Predictions,
    open_image: Callable[[int], Image.Image],
    thresholds: np.ndarray | None = None,
    look: tuple[str, Look] | None = None,
) -> Findings:
    """The numbers behind the report; the arguments are those of `write_results`."""
    from vit.calibration import reliability  # imports torch, which nothing else in a report needs

    k = len(classes)
    hits = predictions.hits()
    matrix = scores = groups = bars = mean_precision = None
    if not predictions.multilabel:
        labels, said = predictions.labels, predictions.top_classes[:, 0]
        counts = (np.bincount(which, minlength=k) for which in (labels[hits], said, labels))
        scores = class_scores(*counts)
        matrix = confusion_matrix(labels, said, k) if k <= MAX_CONFUSION else None
        groups = reliability(predictions.top_probabilities[:, 0], hits)
    elif (table := predictions.scores()) is not None:
        labels = predictions.labels > 0
        said = table > of_classes(thresholds, k)
        scores = class_scores((labels & said).sum(0), said.sum(0), labels.sum(0))
        groups = reliability(table.ravel(), labels.ravel())
        areas = average_precision(table, labels)
        bars = areas, "average precision"
        mean_precision = float(areas[~np.isnan(areas)].mean()) if labels.any() else float("nan")
    else:
        bars = _found_among_top(predictions)
    worst = worst_predictions(predictions, thresholds)
    return Findings(
        run_dir=run_dir,
        split=split,
        classes=classes,
        multilabel=predictions.multilabel,
        summary=read_summary(run_dir / "summary.json"),
        config=_text_of(run_dir / "config.yaml"),
        history=curves.read_history(run_dir / "metrics.csv"),
        num_images=len(predictions),
        num_hits=int(hits.sum()),
        scores=scores,
        mean_average_precision=mean_precision,
        class_bars=bars,
        thresholds=of_classes(thresholds, k) if mean_precision is not None else None,
        matrix=matrix,
        calibration=groups,
        wrong=[
            _wrong_image(predictions, row, at, open_image, look) for row, at in worst[:NUM_WORST]
        ],
        looked_by="" if look is None else look[0],
        wrong_title=_worst_title(len(worst), len(predictions), split),
    )


def _found_among_top(predictions: Predictions) -> tuple[np.ndarray, str]:
    """Per class (k,): fraction of its images that have it in their t top classes."""
    labels, t = predictions.labels > 0, predictions.top_classes.shape[1]
    listed = np.zeros(labels.shape, dtype=bool)
    np.put_along_axis(listed, predictions.top_classes, True, axis=1)
    share = class_scores((labels & listed).sum(0), listed.sum(0), labels.sum(0)).recall
    return share, f"recall among the {t} most probable"


def _wrong_image(
    predictions: Predictions,
    row: int,
    at: int,
    open_image: Callable[[int], Image.Image],
    look: tuple[str, Look] | None,
) -> WrongImage:
    predicted, seen = int(predictions.top_classes[row, at]), None
    try:
        image = open_image(int(predictions.indices[row])).convert("RGB")
        if look is not None and (seen := look[1](image, predicted)) is not None:
            seen.thumbnail((THUMBNAIL, THUMBNAIL))
        image.thumbnail((THUMBNAIL, THUMBNAIL))  # twenty full-size photos would fill the memory
    except (OSError, ValueError):  # a deleted file must not prevent the report
        image = None
    return WrongImage(
        image=image,
        seen=seen,
        name=predictions.names[row],
        true=predictions.classes_of(row),
        predicted=predicted,
        probability=float(predictions.top_probabilities[row, at]),
    )


def _worst_title(num_wrong: int, num_images: int, split: str) -> str:
    images = f"{num_images:,} {split} image{'s' if num_images > 1 else ''}"
    if not num_wrong:
        return f"No errors in {images}"
    if num_wrong == 1:
        return f"The only error in {images}"
    if num_wrong <= NUM_WORST:
        return f"All {num_wrong} errors in {images}"
    return f"The {NUM_WORST} most confident of {num_wrong:,} errors in {images}"


def read_summary(file: Path) -> dict[str, Any]:
    """Content of summary.json; empty if there is none, or, with a note, if it is damaged."""
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
        if isinstance(content, dict):
            return content
        reason = "no JSON object"
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    note(f"{file} cannot be read and is left out: {reason}")
    return {}


def _text_of(file: Path) -> str:
    return file.read_text("utf-8") if file.is_file() else ""


def write_csv(
    file: Path,
    classes: Sequence[str],
    predictions: Predictions,
    *,
    thresholds: np.ndarray | None = None,
    spreadsheet: bool = False,
) -> None:
    """One row per image: its classes, whether the first prediction is correct, the top five.

    Several classes of an image are separated by "|", as in a manifest; multi-label data has those
    above their thresholds in a last column, predicted_labels. File and class names are
    unchanged, so that programs can find the files; with `spreadsheet`, names that a spreadsheet
    would run as formulas are prefixed with '.
    """
    shown = spreadsheet_text if spreadsheet else str
    classes = [shown(name) for name in classes]
    top = range(min(CSV_TOP, predictions.top_classes.shape[1]))
    head = ["index", "image", "label", "label_probability", "predicted", "probability", "correct"]
    for i in top[1:]:
        head += [f"predicted_{i + 1}", f"probability_{i + 1}"]
    said = _sets(predictions, thresholds)
    if said is not None:
        head.append("predicted_labels")
    # A file name need not be valid Unicode.
    # A pipe or a device such as /dev/stdout must not be replaced by a file.
    whole = nullcontext(file) if special(file) is not None else atomic(file)
    with (
        whole as place,
        place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(head)
        for row, right in enumerate(predictions.hits()):
            true = shown("|".join(classes[k] for k in predictions.classes_of(row)))
            ranked = [
                (
                    classes[int(predictions.top_classes[row, i])],
                    predictions.top_probabilities[row, i],
                )
                for i in top
            ]
            (first, probability), *others = ranked
            writer.writerow(
                [predictions.indices[row], shown(predictions.names[row])]
                + [true, _short(predictions.label_probabilities[row])]
                + [first, _short(probability), int(right)]
                + [cell for name, share in others for cell in (name, _short(share))]
                + ([] if said is None else [shown("|".join(classes[k] for k in said[row]))])
            )


def _sets(predictions: Predictions, thresholds: np.ndarray | None) -> list[np.ndarray] | None:
    """Per image the class indices above their thresholds, ascending; None for single labels."""
    table = predictions.scores() if predictions.multilabel else None
    if table is None:
        return None
    return [np.flatnonzero(row) for row in table > of_classes(thresholds, table.shape[1])]


def _short(probability: float) -> str:
    return f"{probability:.6g}"


def write_results(
    run_dir: Path,
    *,
    split: str,
    classes: Sequence[str],
    predictions: Predictions,
    open_image: Callable[[int], Image.Image],
    thresholds: np.ndarray | None = None,
    look: tuple[str, Look] | None = None,
) -> list[Path]:
    """Writes predictions.csv, the figures and report.html of one evaluation to `run_dir`.

    `open_image` returns the image of an entry of `predictions.indices`. An image that can no longer
    be opened (OSError, ValueError) becomes an empty frame. Figures without data are skipped:
    curves.png without metrics.csv; confusion.png for more than MAX_CONFUSION classes and for
    multi-label data, which gets per_class.png. `thresholds` (k,): probabilities above which a class
    of multi-label data is predicted. `look`: the name of a method, and a function that draws what
    the model looked at in an error, given its image and the class it said. Returns the written
    files, the report last. Raises UserError for a set without images.
    """
    if not len(predictions):
        raise UserError(f"the {split} set has no images, so there is nothing to report")
    run_dir = Path(run_dir)
    predictions = predictions.in_order()
    write_csv(run_dir / "predictions.csv", classes, predictions, thresholds=thresholds)
    findings = examine(run_dir, split, classes, predictions, open_image, thresholds, look)
    pictures = {"worst.png": png(figures.worst(findings.wrong, classes, findings.wrong_title))}
    if panels := list(curves.panels_of(findings.history)):
        pictures["curves.png"] = png(curves.curves(findings.history, panels))
    if findings.matrix is not None:
        pictures["confusion.png"] = png(figures.confusion(findings.matrix, classes), crop=True)
    if findings.class_bars is not None:
        values, label = findings.class_bars
        pictures["per_class.png"] = png(figures.class_bars(values, classes, label))
    for name, content in pictures.items():
        write_bytes(run_dir / name, content)
    # A file name may be invalid Unicode, but the page must not be.
    write_text(run_dir / "report.html", render(findings), errors="backslashreplace")
    return [run_dir / name for name in ("predictions.csv", *pictures, "report.html")]
