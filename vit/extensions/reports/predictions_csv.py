"""predictions.csv: the five most probable classes of every image."""

import csv
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from vit.extensions.reports.scores import predicted_labels
from vit.runs.predictions import Predictions
from vit.writing import atomic, for_spreadsheet

CSV_TOP = 5


def write_csv(
    file: Path,
    classes: Sequence[str],
    predictions: Predictions,
    thresholds: np.ndarray | None = None,
    *,
    spreadsheet: bool = False,
) -> None:
    """Row of the table `prediction_files`.

    Writes a row per image: its classes, 1 if the most probable class is correct, the top five.
    Several classes of an image are separated by "|", as in a manifest; those above their thresholds
    are in a last column, predicted_labels. With `spreadsheet`, names that a spreadsheet would run
    as formulas are prefixed with '.
    """
    head = ["index", "image", "label", "label_probability", "predicted", "probability", "correct"]
    count = min(CSV_TOP, predictions.top_classes.shape[1])
    head += [f"{name}_{i}" for i in range(2, count + 1) for name in ("predicted", "probability")]
    chosen = predicted_labels(predictions, thresholds) if predictions.multilabel else None
    if chosen is not None:
        head.append("predicted_labels")
    # A pipe or a device such as /dev/stdout must not be replaced by a file.
    whole = atomic(file) if file.is_file() or not file.exists() else nullcontext(file)
    with (
        whole as place,
        # A file name need not be valid Unicode.
        place.open("w", newline="", encoding="utf-8", errors="backslashreplace") as out,
    ):
        writer = csv.writer(out)
        writer.writerow(head)
        for row, correct in enumerate(predictions.hits()):
            top = predictions.top_classes[row], predictions.top_probabilities[row]
            best = [[classes[k], _short(p)] for k, p in list(zip(*top, strict=True))[:CSV_TOP]]
            true = "|".join(classes[k] for k in predictions.classes_of(row))
            cells = [predictions.indices[row], predictions.names[row], true]
            cells += [_short(predictions.label_probabilities[row]), *best[0], int(correct)]
            cells += [cell for pair in best[1:] for cell in pair]
            if chosen is not None:
                cells.append("|".join(classes[k] for k in np.flatnonzero(chosen[row]).tolist()))
            writer.writerow(for_spreadsheet(cells) if spreadsheet else cells)


def _short(probability: float) -> str:
    return f"{probability:.6g}"
