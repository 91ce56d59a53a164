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

    def splits_of(*words: str) -> Splits:
        return Options([*default, *final, *words]).data.unseen_by(known).splits

    splits = splits_of()
    if splits.test is None and splits.val is None:
        lack = "too few images to hold any out"
        raise UserError(f"{data} has {lack}; `vit tune` compares scores on held-out images")
    if splits.test is None:
        note(f"{data} has no test images: its val is test here, and val is cut from train")
        final[:1] = _written(splits, "test", folder / "images.csv")
    if splits.test is None or splits.val is None:
        share = min(VAL_IMAGES / len(splits.train), MOST_SHARE)
        cut = [f"--data.splits.val_fraction={share:.3g}"]
    if known is not None:  # the cut of each encoder alone would leave it other images
        splits = splits_of(*cut)
        final[:1] = _written(splits, "train" if cut else "val", folder / "final.csv")
        cut = cut and _written(splits, "val", folder / "search.csv")
    if folds is None:
        return final, {"": [*final, *cut]}
    splits, file = splits_of(), folder / "folds.csv"
    write_text(file, listed_folds(splits, folds, seed, known), errors="surrogateescape")
    return final, reading_folds(splits, file, folds)


def _written(splits: Splits, val: str, file: Path) -> list[str]:
    """Writes a list of the images, with this split for those of val; words that read it."""
    write_text(file, csv_of(splits, val), errors="surrogateescape")
    return reading_options(splits, file)
