"""Images of a search of options, the same for all of its runs: what they learn, and what is held
out."""

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np

from vit.console import note
from vit.data.sources import Splits
from vit.data.trained_on import Known
from vit.errors import UserError
from vit.extensions.transfer.fold_lists import listed_folds, reading_folds
from vit.extensions.transfer.image_lists import csv_of, reading_options
from vit.fine_tuning import ENOUGH_TO_CHOOSE
from vit.runs.lineage import known_by
from vit.runs.options import Options
from vit.writing import write_text

PLAN = "options.json"
"""File of a search that has begun."""
VAL_IMAGES, MOST_SHARE = 0.9 * ENOUGH_TO_CHOOSE, 0.3
"""Images that are cut from train for val, at most this share of it; with more of them, a run of the
search would choose the average of its weights by them, and a final run could not."""


def search_images(
    data: str,
    default: list[str],
    encoders: Sequence[str],
    folds: int | None,
    seed: int,
    folder: Path,
) -> tuple[list[str], dict[str, list[str]]]:
    """Words for the images with a test split; and those of the runs of a cell in the search, by the
    end of their names: of each fold, or of one that cuts val from train, if need be."""
    final, cut = [f"--data={data}", f"--data.splits.seed={seed}"], list[str]()
    seen = [known.digests for name in encoders if (known := known_by(name)) is not None]
    known = Known(reduce(np.union1d, seen), " or ".join(encoders)) if seen else None

    def read(*words: str) -> Options:
        options = Options([*default, *final, *words])
        options.data.unseen_by(known)
        return options

    splits = read().data.splits
    if splits.test is None and splits.val is None:
        lack = "too few images to hold any out"
        raise UserError(f"{data} has {lack}; `vit tune` compares scores on held-out images")
    if splits.test is None:
        search = "folds are" if folds else "val is"
        note(f"{data} has no test images: its val is test here, and {search} cut from train")
        final[:1] = _written(splits, "test", folder / "images.csv")
    if splits.test is None or splits.val is None:
        share = min(VAL_IMAGES / len(splits.train), MOST_SHARE)
        cut = [f"--data.splits.val_fraction={share:.3g}"]
    if known is not None:  # the cut of each encoder alone would leave it other images
        splits = read(*cut).data.splits
        final[:1] = _written(splits, "train" if cut else "val", folder / "final.csv")
        cut = cut and _written(splits, "val", folder / "search.csv")
    if folds is None:
        return final, {"": [*final, *cut]}
    options, file = read(), folder / "folds.csv"
    _write(file, listed_folds(options, folds))
    return final, reading_folds(options.data.splits, file, folds)


def _written(splits: Splits, val: str, file: Path) -> list[str]:
    """Writes a list of the images, with this split for those of val; words that read it."""
    _write(file, csv_of(splits, val))
    return reading_options(splits, file)


def _write(file: Path, text: str) -> None:
    """Writes a list. UserError for another one in a search that has begun, which reads it."""
    begun = (file.parent / PLAN).is_file()
    if begun and not (file.is_file() and file.read_text("utf-8", "surrogateescape") == text):
        raise UserError(
            f"{file.parent} was started with other images, encoders, --seed or --folds "
            f"({file.name}); choose another --run_dir, or give the same"
        )
    write_text(file, text, errors="surrogateescape")
